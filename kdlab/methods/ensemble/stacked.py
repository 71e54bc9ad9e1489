"""Steps of K local models at once, on stacked weights, with torch.func's vmap.

A GPU waits for its next kernel while small networks train one after the other; stacked, K steps
launch about as many kernels as one. Parameters and buffers of the models become views of the
stacked ones, so optimizers, checkpoints and communications need no change. Batched products add
in another order than those of one model, and dropout draws for all models at once: without dropout
results are equal up to rounding, not bit for bit.
"""

import copy
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from kdlab.errors import BadInput, RunStopped
from kdlab.methods.ensemble.local_job import RoundWork
from kdlab.methods.ensemble.local_sgd import LocalSgd, LossOf
from kdlab.models.model import Normalised
from kdlab.soft_labels.source import Batch
from kdlab.train.step import seed_by

Steps = Generator[tuple[Batch, LossOf], None, RoundWork]
"""Batches of local steps, each with its loss, and then the report."""


class StackedModels:
    """Networks of one architecture, whose weights become views of one stack."""

    def __init__(self, models: Sequence[Normalised]) -> None:
        self._frame = copy.deepcopy(models[0]).to("meta").train()
        self.parameters = self._stack([dict(m.named_parameters()) for m in models])
        self._buffers = self._stack([dict(m.named_buffers()) for m in models])
        for stacked in self.parameters.values():
            stacked.requires_grad_()

    @staticmethod
    def _stack(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        stack = {}
        for name in each[0]:
            stack[name] = torch.stack([tensors[name].detach() for tensors in each])
            for tensors, row in zip(each, stack[name], strict=True):
                tensors[name].data = row
        return stack

    def scores(self, views: Tensor) -> Tensor:
        """(K, N, C, H, W) uint8 -> (K, N, classes): each model scores its own views."""

        def forward(state: tuple[dict[str, Tensor], ...], batch: Tensor) -> Tensor:
            scores: Tensor = functional_call(self._frame, state, (batch,))
            return scores

        state = (self.parameters, self._buffers)
        scores: Tensor = vmap(forward, randomness="different")(state, views)
        return scores


def check_stackable(model: Normalised, shape: tuple[int, ...]) -> None:
    """Take a step of two such networks.

    Raises:
        BadInput: vmap does not support one of its layers.
    """
    with torch.random.fork_rng():
        pair = StackedModels([copy.deepcopy(model).cpu(), copy.deepcopy(model).cpu()])
        try:
            pair.scores(torch.zeros(2, 2, *shape, dtype=torch.uint8)).sum().backward()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise BadInput(
                f"method.stacked is true, but {type(model.net).__name__} cannot be trained with "
                f"stacked weights: {str(error).partition('. ')[0]}. Set method.stacked=false."
            ) from error


class StackedSgd:
    """Steps of several local models at once."""

    def __init__(self, sgds: Sequence[LocalSgd]) -> None:
        self.sgds = list(sgds)
        for sgd in self.sgds:
            sgd.companions = [other for other in self.sgds if other is not sgd]
        self._models = StackedModels([sgd.model for sgd in sgds])
        self._parameters: list[dict[str, nn.Parameter]] = [
            dict(sgd.model.named_parameters()) for sgd in sgds
        ]

    def round(self, each: Sequence[Steps]) -> list[RoundWork]:
        """Take all steps of a round; each worker is charged an equal share of their seconds.

        Relabelling before them is charged to the worker that does it.

        Raises:
            RunStopped: the user asked for it; all have saved their state.
        """
        done: dict[int, RoundWork] = {}
        while len(done) < len(each):
            batches: dict[int, tuple[Batch, LossOf]] = {}
            stopped: RunStopped | None = None
            for number in (k for k in range(len(each)) if k not in done):
                try:
                    batches[number] = next(each[number])
                except StopIteration as end:
                    done[number] = end.value
                except RunStopped as error:
                    stopped = error
            if stopped is not None:
                for number in batches:  # each saves its state from before its batch
                    with suppress(RunStopped):
                        each[number].throw(stopped)
                raise stopped
            alike = len({tuple(batch.views.shape) for batch, _ in batches.values()}) == 1
            if alike and len(batches) == len(each):
                self._step(*zip(*batches.values(), strict=True))
            else:  # the end of an epoch, or workers that resumed at different steps
                for number, (batch, loss_of) in batches.items():
                    self.sgds[number].step(batch, loss_of)
        works = [done[number] for number in range(len(each))]
        if self.sgds[0].job.prices is not None:
            return works
        return [replace(work, train_s=work.train_s / len(each)) for work in works]

    def _step(self, batches: Sequence[Batch], losses: Sequence[LossOf]) -> None:
        first = self.sgds[0]
        seed_by(first.job.seed, -len(self.sgds), first.steps)
        views = torch.stack([batch.views for batch in batches]).to(first.device)
        labels = torch.stack([batch.labels for batch in batches]).to(first.device)
        for sgd in self.sgds:
            sgd.schedule()
        with first.train_step.precision():
            scores = self._models.scores(views).float()
        rows = slice(0, views.shape[1])
        total = torch.stack(
            [
                loss_of(s, sgd.hard_loss(s, labels[k]), rows)
                for k, (s, sgd, loss_of) in enumerate(
                    zip(scores, self.sgds, losses, strict=True)
                )
            ]
        ).sum()  # no model's loss depends on the weights of another
        stacked = self._models.parameters
        gradients = torch.autograd.grad(total, list(stacked.values()), allow_unused=True)
        for k, sgd in enumerate(self.sgds):
            for name, gradient in zip(stacked, gradients, strict=True):
                self._parameters[k][name].grad = None if gradient is None else gradient[k]
            sgd.update(scores[k].detach(), labels[k])
