"""One step of any training: forward in the recipe's precision, part by part, clip, update."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kdlab.events.event import Emit
from kdlab.events.general import Note
from kdlab.train.alive import alive
from kdlab.train.checkpoint import OptimizerFacts, pack, unpack
from kdlab.train.optimizers import make_optimizer, parameter_groups
from kdlab.train.recipe import Recipe, Stepper
from kdlab.train.rounding import EightBits
from kdlab.train.schedules import lr_at

_KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def seed_by(*key: int) -> None:
    """Seed PyTorch by a key: equal keys give equal random numbers, on every machine."""
    digest = blake2b(repr(key).encode(), digest_size=7).digest()
    torch.manual_seed(int.from_bytes(digest))


def steps_per_second(step: Callable[[], object], *, least: int, seconds: float) -> float:
    """Measure steps per second, over at least `least` steps and `seconds`."""
    done, begin = 0, time.perf_counter()
    while done < least or time.perf_counter() - begin < seconds:
        step()
        done += 1
    return done / (time.perf_counter() - begin)


M = TypeVar("M", bound=nn.Module)


def placed(model: M, recipe: Recipe, emit: Emit) -> M:
    """Move a model to the device and the memory layout of the recipe."""
    # Not on the CPU: oneDNN chooses its own layout, and that of torch 2.15 overwrites memory
    # for 1x1 convolutions with stride in this one (AVX2, 4 channels).
    device = recipe.chosen_device()
    last = recipe.channels_last and device == "cuda"
    if recipe.channels_last and not last:
        emit(Note(message="channels_last has no effect on the CPU"))
    layout = torch.channels_last if last else torch.contiguous_format
    return model.to(device, memory_format=layout)  # type: ignore[call-overload]  # stubs miss memory_format


def compiled(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Compile a model where the recipe has it."""
    return torch.compile(model) if recipe.compile else model  # type: ignore[return-value]


class TrainStep:
    """A model with its optimizer and, in fp16, its gradient scaler: one step of any training.

    Args:
        recipe: precision, clipping, schedule.
        model: its parameters are trained.
        run_model: the compiled or wrapped model that is called; None is the model itself.
        device: of the model; None is the recipe's.
        optimizer: None is the recipe's; of another one the parameters in its groups are clipped.
        beat: heartbeat of the process during the first step, which may compile for minutes.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        run_model: nn.Module | None = None,
        device: torch.device | None = None,
        optimizer: Stepper | None = None,
        beat: Callable[[], None] | None = None,
    ) -> None:
        self.recipe, self.model, self.run_model = recipe, model, run_model or model
        self.device = device or torch.device(recipe.chosen_device())
        self._kind = _KINDS.get(recipe.precision)  # None: float32
        self.optimizer: Stepper = optimizer or make_optimizer(recipe, model)
        self._clipped = None if optimizer is None else _in_groups(optimizer)
        self.others = list[nn.Parameter]()  # trained, beside the model's
        self.scaler = torch.amp.GradScaler(enabled=recipe.precision == "fp16")
        self.lr = recipe.lr  # of the next step; groups may scale it
        self._rounds = False  # True where the next step uses eight bits
        self._beat = beat  # until the first step is done

    def state(self) -> tuple[dict[str, Tensor], OptimizerFacts]:
        """Return its state and the random state, for a checkpoint."""
        tensors, facts = pack(self.model, self.optimizer)
        return tensors, replace(facts, scaler=self.scaler.state_dict())

    def restore(self, tensors: dict[str, Tensor], facts: OptimizerFacts, rank: int) -> None:
        """Restore a `state`; `rank` as in `unpack`."""
        unpack(tensors, facts, self.model, self.optimizer, rank)
        if facts.scaler:
            self.scaler.load_state_dict(facts.scaler)

    def add(self, module: nn.Module) -> None:
        """Train its parameters too."""
        for group in parameter_groups(module, self.recipe.weight_decay):
            cast(torch.optim.Optimizer, self.optimizer).add_param_group(group)
        self.others += module.parameters()

    def forget(self) -> None:
        """Continue with a new optimizer, without momentum."""
        self.optimizer = make_optimizer(self.recipe, self.model)

    def at(self, epoch: float, batches: int, factor: float = 1.0, drops: int = 0) -> None:
        """Set the position of the next step, in epochs of `batches`; see `lr_at`."""
        self.lr = factor * lr_at(self.recipe, epoch, batches, drops)
        self._rounds = self.recipe.rounds_at(epoch)

    def precision(self) -> ExitStack:
        """Return a context for forward passes in the precision of the recipe."""
        stack = ExitStack()
        if self._kind is not None:
            stack.enter_context(torch.autocast(self.device.type, dtype=self._kind))
        if self._rounds:
            stack.enter_context(EightBits())
        return stack

    def scores(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 on the device -> (N, classes) float32."""
        return self.both_scores(views)[0]

    def both_scores(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N, classes) scores for the true labels, and those for a teacher's.

        They are equal, except for a network with a distillation token in training (DeiT,
        arXiv:2012.12877, section 4), which has a head for each.
        """
        with self.precision():
            scores: Tensor | tuple[Tensor, Tensor] = self.run_model(views)
        if isinstance(scores, tuple):
            return scores[0].float(), scores[1].float()
        scores = scores.float()
        return scores, scores

    def listen(self, *, taught: bool) -> None:
        """Set whether a distillation token learns from the teacher; else its heads are averaged."""
        net = getattr(self.model, "net", None)
        switch = getattr(net, "set_distilled_training", None)  # of timm's
        if switch is not None:
            switch(taught)

    def __call__(self, loss: Tensor, lr: float) -> None:
        """Take a step on this loss."""
        self.lr = lr
        self.gradients(1, 1, lambda rows: loss)
        self.update()

    def parts(self, least: int) -> int:
        """Return the parts of a batch whose smallest share has `least` rows: two rows each."""
        return max(1, min(self.recipe.accumulate, least // 2))

    def gradients(
        self,
        rows: int,
        parts: int,
        loss_of: Callable[[slice], Tensor],
        weigh: Callable[[Tensor], Tensor] = lambda loss: loss,
    ) -> Tensor:
        """Compute the gradients of a batch; earlier ones are cleared.

        Args:
            rows: of the batch.
            parts: number of parts, computed one after the other.
            loss_of: mean loss of some of the rows.
            weigh: weights a loss before its gradient, where ranks share the batch.

        Returns:
            The mean loss of all rows, on the device.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses = list[Tensor]()
        beat, self._beat = self._beat, None
        with nullcontext() if beat is None else alive(beat):
            for part in cut_rows(rows, parts):
                with self._no_sync(last=part.stop == rows):
                    loss = loss_of(part)
                    if parts > 1:
                        loss = loss * ((part.stop - part.start) / rows)
                    weighted = weigh(loss)
                    if weighted.requires_grad:  # a path of skips only has no parameters
                        self.scaler.scale(weighted).backward()
                losses.append(loss.detach())
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    def _no_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """Return a context that averages gradients over ranks for the last part only."""
        if last or not isinstance(self.run_model, DistributedDataParallel):
            return nullcontext()
        return self.run_model.no_sync()

    def update(self) -> None:
        """Update the parameters by the current gradients."""
        optimizer, scaler = self.optimizer, self.scaler
        for group in optimizer.param_groups:
            share = cast(float, group.get("lr_scale", 1.0))  # of a layer decay
            group["lr"] = self.lr * share
        if self.recipe.clip_grad_norm is not None:
            scaler.unscale_(cast(torch.optim.Optimizer, optimizer))
            clipped = self.model.parameters() if self._clipped is None else self._clipped
            nn.utils.clip_grad_norm_([*clipped, *self.others], self.recipe.clip_grad_norm)
        scaler.step(cast(torch.optim.Optimizer, optimizer))
        scaler.update()


def cut_rows(rows: int, parts: int) -> list[slice]:
    """Cut rows into parts of about equal size, the larger ones first."""
    ends = [k * (rows // parts) + min(k, rows % parts) for k in range(parts + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def _in_groups(optimizer: Stepper) -> list[Tensor]:
    """List its parameters; in a search, those of the architecture are not clipped."""
    groups = [cast(list[Tensor], group["params"]) for group in optimizer.param_groups]
    return [parameter for group in groups for parameter in group]
