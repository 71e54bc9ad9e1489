"""K local models as one: their steps on stacked weights, with torch.func's vmap.

A GPU waits for its next kernel while small networks train one after the other; stacked, K steps
launch about as many kernels as one. Parameters and buffers of the models become views of the
stacked ones, so optimisers, checkpoints and communications go on as they are. Batched products add
in another order than those of one model, and dropout draws for all models at once: results
are equal to rounding (without dropout), not bit for bit.
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
"""Local steps that somebody is to take, and the report of them."""


class StackedModels:
    """Networks of one kind; each then has its weights in the stack of all."""

    def __init__(self, models: Sequence[Normalised]) -> None:
        self._frame = copy.deepcopy(models[0]).to("meta").train()
        self.parameters = self._stack([dict(m.named_parameters()) for m in models])
        self._buffers = self._stack([dict(m.named_buffers()) for m in models])
        for stacked in self.parameters.values():
            stacked.requires_grad_()

    @staticmethod
    def _stack(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        found = {}
        for name in each[0]:
            found[name] = torch.stack([own[name].detach() for own in each])
            for number, own in enumerate(each):
                own[name].data = found[name][number]
        return found

    def scores(self, views: Tensor) -> Tensor:
        """(K, N, C, H, W) uint8 -> (K, N, classes), as each model sees its own."""

        def one(
            parameters: dict[str, Tensor], buffers: dict[str, Tensor], own: Tensor
        ) -> Tensor:
            found: Tensor = functional_call(self._frame, (parameters, buffers), (own,))
            return found

        stacked = vmap(one, randomness="different")
        found: Tensor = stacked(self.parameters, self._buffers, views)
        return found


def check_stackable(model: Normalised, shape: tuple[int, ...]) -> None:
    """A step of two such networks.

    Raises:
        BadInput: vmap cannot do one of its layers.
    """
    with torch.random.fork_rng():
        pair = StackedModels([copy.deepcopy(model).cpu(), copy.deepcopy(model).cpu()])
        try:
            found = pair.scores(torch.zeros(2, 2, *shape, dtype=torch.uint8))
            found.sum().backward()
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise BadInput(
                f"method.stacked is true, and {type(model.net).__name__} cannot be trained as "
                f"stacked weights: {str(error).partition('. ')[0]}. Set method.stacked=false."
            ) from error


class StackedSgd:
    """Steps of several local models at once."""

    def __init__(self, sgds: Sequence[LocalSgd]) -> None:
        self.sgds = list(sgds)
        for sgd in self.sgds:
            sgd.companions = [other for other in self.sgds if other is not sgd]
        self._models = StackedModels([sgd.model for sgd in sgds])
        self._own: list[dict[str, nn.Parameter]] = [
            dict(sgd.model.named_parameters()) for sgd in sgds
        ]

    def round(self, each: Sequence[Steps]) -> list[RoundWork]:
        """Take all steps of a round; each worker is charged an equal share of their seconds.

        Relabelling before them is charged to the worker that does it.

        Raises:
            RunStopped: the user asked; all have kept their state.
        """
        done: dict[int, RoundWork] = {}
        while len(done) < len(each):
            asked: dict[int, tuple[Batch, LossOf]] = {}
            stopped: RunStopped | None = None
            for number in (k for k in range(len(each)) if k not in done):
                try:
                    asked[number] = next(each[number])
                except StopIteration as end:
                    done[number] = end.value
                except RunStopped as error:
                    stopped = error
            if stopped is not None:
                for number in asked:  # each saves its state from before its batch
                    with suppress(RunStopped):
                        each[number].throw(stopped)
                raise stopped
            alike = len({tuple(batch.views.shape) for batch, _ in asked.values()}) == 1
            if alike and len(asked) == len(each):
                self._step(*zip(*asked.values(), strict=True))
            else:  # the end of an epoch, or of what one still had to do after a resume
                for number, (batch, loss_of) in asked.items():
                    self.sgds[number].one(batch, loss_of)
        found = [done[number] for number in range(len(each))]
        if self.sgds[0].job.prices is not None:
            return found
        return [replace(work, train_s=work.train_s / len(each)) for work in found]

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
                loss_of(own, sgd.hard_loss(own, labels[k]), rows)
                for k, (own, sgd, loss_of) in enumerate(
                    zip(scores, self.sgds, losses, strict=True)
                )
            ]
        ).sum()  # the weights of one model have no part in the loss of another
        stacked = self._models.parameters
        made = torch.autograd.grad(total, list(stacked.values()), allow_unused=True)
        for k, sgd in enumerate(self.sgds):
            for name, gradient in zip(stacked, made, strict=True):
                self._own[k][name].grad = None if gradient is None else gradient[k]
            sgd.update(scores[k].detach(), labels[k])
