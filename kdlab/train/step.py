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
    """PyTorch's chances from here on, the same wherever and whenever this key comes up."""
    digest = blake2b(repr(key).encode(), digest_size=7).digest()
    torch.manual_seed(int.from_bytes(digest))


def steps_per_second(step: Callable[[], object], *, least: int, seconds: float) -> float:
    """Over so many steps at least, and as many as take so long."""
    done, begin = 0, time.perf_counter()
    while done < least or time.perf_counter() - begin < seconds:
        step()
        done += 1
    return done / (time.perf_counter() - begin)


M = TypeVar("M", bound=nn.Module)


def placed(model: M, recipe: Recipe, emit: Emit) -> M:
    """On the recipe's device, in the layout that it asks for."""
    # Not on the CPU: oneDNN brings what it wants into its own order, and that of torch
    # 2.15 overwrites memory for 1x1 convolutions with stride in this one (AVX2, 4 channels).
    device = recipe.chosen_device()
    last = recipe.channels_last and device == "cuda"
    if recipe.channels_last and not last:
        emit(Note(message="channels_last is for GPUs; the CPU does without it"))
    layout = torch.channels_last if last else torch.contiguous_format
    return model.to(device, memory_format=layout)  # type: ignore[call-overload]  # stubs miss memory_format


def compiled(model: nn.Module, recipe: Recipe) -> nn.Module:
    """What is called of it."""
    return torch.compile(model) if recipe.compile else model  # type: ignore[return-value]


class TrainStep:
    """A model with its optimiser and, in fp16, its gradient scaler: one step of any training.

    Args:
        recipe: precision, clipping, schedule.
        model: whose parameters learn.
        run_model: what is called, compiled or wrapped; None is the model itself.
        device: of the model; None is the recipe's.
        optimizer: None is the recipe's; of another one what it has in its groups is clipped.
        beat: a sign of life of the process, during a first step that may compile for minutes.
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
        self._own = None if optimizer is None else _in_groups(optimizer)
        self.others = list[nn.Parameter]()  # that are not the model's, and learn
        self.scaler = torch.amp.GradScaler(enabled=recipe.precision == "fp16")
        self.lr = recipe.lr  # of the next step; groups of parameters may have shares of it
        self._rounds = False  # to eight bits
        self._beat = beat  # until the first step is done

    def state(self) -> tuple[dict[str, Tensor], OptimizerFacts]:
        """All of it, and the state of chance, for a checkpoint."""
        tensors, facts = pack(self.model, self.optimizer)
        return tensors, replace(facts, scaler=self.scaler.state_dict())

    def restore(self, tensors: dict[str, Tensor], facts: OptimizerFacts, rank: int) -> None:
        """The inverse; `rank` as in `unpack`."""
        unpack(tensors, facts, self.model, self.optimizer, rank)
        if facts.scaler:
            self.scaler.load_state_dict(facts.scaler)

    def add(self, module: nn.Module) -> None:
        """Train its parameters too."""
        for group in parameter_groups(module, self.recipe.weight_decay):
            cast(torch.optim.Optimizer, self.optimizer).add_param_group(group)
        self.others += module.parameters()

    def forget(self) -> None:
        """Go on with an optimiser that remembers nothing."""
        self.optimizer = make_optimizer(self.recipe, self.model)

    def at(self, epoch: float, batches: int, factor: float = 1.0, drops: int = 0) -> None:
        """The next step is behind so many epochs of so many batches; see `lr_at`."""
        self.lr = factor * lr_at(self.recipe, epoch, batches, drops)
        self._rounds = self.recipe.rounds_at(epoch)

    def precision(self) -> ExitStack:
        """Forward passes while it is open are in the numbers of the recipe."""
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
        """(N, classes) that learn the true labels, and that learn a teacher's.

        They are one and the same, but for a network with a distillation token in training
        (DeiT, arXiv:2012.12877, section 4), which has a head for each.
        """
        with self.precision():
            scores: Tensor | tuple[Tensor, Tensor] = self.run_model(views)
        if isinstance(scores, tuple):
            return scores[0].float(), scores[1].float()
        found = scores.float()
        return found, found

    def listen(self, *, taught: bool) -> None:
        """Have a distillation token learn from the teacher; without one both tokens are one."""
        net = getattr(self.model, "net", None)
        switch = getattr(net, "set_distilled_training", None)  # of timm's
        if switch is not None:
            switch(taught)

    def __call__(self, loss: Tensor, lr: float) -> None:
        """Down the gradient of this loss."""
        self.lr = lr
        self.gradients(1, 1, lambda rows: loss)
        self.update()

    def parts(self, least: int) -> int:
        """How many a batch is cut into, whose smallest share is so many rows: two rows each."""
        return max(1, min(self.recipe.accumulate, least // 2))

    def gradients(
        self,
        rows: int,
        parts: int,
        loss_of: Callable[[slice], Tensor],
        weigh: Callable[[Tensor], Tensor] = lambda loss: loss,
    ) -> Tensor:
        """Those of a batch, and of nothing before it.

        Args:
            rows: of the batch.
            parts: that are computed one after the other.
            loss_of: mean loss of some of the rows.
            weigh: what of a loss is learned from, where ranks share the batch.

        Returns:
            The mean loss of all rows, on the device.
        """
        self.optimizer.zero_grad(set_to_none=True)
        losses = list[Tensor]()
        beat, self._beat = self._beat, None
        with nullcontext() if beat is None else alive(beat):
            for part in cut_rows(rows, parts):
                with self._alone(last=part.stop == rows):
                    loss = loss_of(part)
                    if parts > 1:
                        loss = loss * ((part.stop - part.start) / rows)
                    own = weigh(loss)
                    if own.requires_grad:  # a path of skips alone has nothing to learn
                        self.scaler.scale(own).backward()
                losses.append(loss.detach())
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    def _alone(self, *, last: bool) -> AbstractContextManager[object]:
        """Ranks average their gradients once, behind the last part."""
        if last or not isinstance(self.run_model, DistributedDataParallel):
            return nullcontext()
        return self.run_model.no_sync()

    def update(self) -> None:
        """Down the gradients that are there."""
        optimizer, scaler = self.optimizer, self.scaler
        for group in optimizer.param_groups:
            share = cast(float, group.get("lr_scale", 1.0))  # of a layer decay
            group["lr"] = self.lr * share
        if self.recipe.clip_grad_norm is not None:
            scaler.unscale_(cast(torch.optim.Optimizer, optimizer))
            own = self.model.parameters() if self._own is None else self._own
            nn.utils.clip_grad_norm_([*own, *self.others], self.recipe.clip_grad_norm)
        scaler.step(cast(torch.optim.Optimizer, optimizer))
        scaler.update()


def cut_rows(rows: int, parts: int) -> list[slice]:
    """So many parts of about the same size, the larger ones first."""
    ends = [k * (rows // parts) + min(k, rows % parts) for k in range(parts + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def _in_groups(optimizer: Stepper) -> list[Tensor]:
    """Its parameters: in a search those that choose an architecture are no part of a norm."""
    groups = [cast(list[Tensor], group["params"]) for group in optimizer.param_groups]
    return [parameter for group in groups for parameter in group]
