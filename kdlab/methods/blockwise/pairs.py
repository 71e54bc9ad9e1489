"""Pairs of blocks: each student block learns its teacher block's output (section II-A).

Student block i gets what teacher block i - 1 put out, and minimises the difference of its
own output from teacher block i's. So no student block depends on another one's weights:
that is why they can be trained apart, at the same time, and updated when each is ready.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from kdlab.errors import ModelError
from kdlab.models.adapted import CHANNELS_LAST, Adapted, AdaptedModel, adapter, channels_of
from kdlab.models.block_variants import variant_blocks
from kdlab.models.model import ModelSpec, evaluating
from kdlab.train.step import TrainStep

_MAPS = 4  # dimensions of outputs whose channels come before height and width
_NOTHING = 1e-6  # a row whose outputs are all about zero
BlockLoss = Callable[[Tensor, Tensor], Tensor]  # (student's, teacher's) -> mean over rows


@dataclass(slots=True)
class BlockPair:
    teacher: nn.Module  # frozen, in eval mode
    student: nn.Module
    loss: BlockLoss
    # The student's is the teacher's, weights and all: nothing is left to learn
    same: bool = False
    # Whose outputs the student's block gets: those of the teacher's block before it, or the
    # student's, which are `equal` to the teacher's as long as no block before it learns
    inputs: Literal["teacher", "equal", "student"] = "teacher"

    @property
    def relayed(self) -> int:
        """Outputs that the next stage gets for each row: the teacher's, or the student's too."""
        return 1 if self.inputs == "teacher" else 2


def block_loss(
    train_step: TrainStep,
    pair: BlockPair,
    source: Tensor,
    target: Tensor,
    rows: slice,
    outputs: list[Tensor] | None = None,
) -> Tensor:
    """Loss of a pair's student on these rows, in the recipe's precision.

    Args:
        train_step: of the student.
        pair: of blocks.
        source: (N, ...) inputs of the student.
        target: (N, ...) outputs of the teacher.
        rows: of both.
        outputs: the student's outputs on these rows are put here.
    """
    with train_step.precision():
        output = _as_exact_as(target, pair.student(source[rows]))
    if outputs is not None:
        outputs.append(output.detach())
    return pair.loss(output, target[rows])


def _as_exact_as(target: Tensor, output: Tensor | Sequence[Tensor]) -> Any:
    """Outputs of a block, of which there may be several, out of autocast."""
    if isinstance(output, Tensor):
        return output.to(target.dtype)
    return [one.to(target.dtype) for one in output]


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Loss of the last block, whose outputs are logits; as the authors' code has it."""
    return cross_entropy(student, teacher.softmax(1))


@dataclass(frozen=True, slots=True)
class SumOverVariants:
    """The loss of a block of which there are several: each learns as if it were alone."""

    loss: BlockLoss  # of one

    def __call__(self, student: Tensor | Sequence[Tensor], teacher: Tensor) -> Tensor:
        return torch.stack([self.loss(one, teacher) for one in student]).sum()


def relative_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Squared error of each row over the teacher's square, so that blocks weigh alike (Puzzle).

    A mean over rows, as all losses of blocks are: devices that share a batch add theirs up.
    """
    apart = (student - teacher).square().flatten(1).mean(1)
    return (apart / teacher.square().flatten(1).mean(1).clamp_min(_NOTHING)).mean()


@dataclass(frozen=True, slots=True)
class RelativeToChannels:
    """Squared error over the variance of the teacher's channels, so that all weigh alike.

    weight: one over the variance of each channel over images and places; a channel that hardly
        varies counts as one of a thousandth of the mean.
    """

    weight: Tensor

    @classmethod
    def of(cls, outputs: Tensor) -> "RelativeToChannels":
        """(N, C, H, W), (N, tokens, C) or (N, C) that the teacher's block puts out."""
        channels = 1 if outputs.dim() == _MAPS else outputs.dim() - 1
        over = [d for d in range(outputs.dim()) if d != channels]
        variance = outputs.var(over, keepdim=True)
        return cls(1 / variance.clamp_min(1e-3 * float(variance.mean()) + _NOTHING))

    def __call__(self, student: Tensor, teacher: Tensor) -> Tensor:
        return ((student - teacher).square() * self.weight).mean()


def pairs_of(
    teachers: Sequence[nn.Module],
    students: Sequence[nn.Module],
    views: Tensor,
    *,
    last_loss: Literal["soft_cross_entropy", "mse"] = "soft_cross_entropy",
) -> list[BlockPair]:
    """Teacher and student blocks that belong together, checked on some views.

    The teacher's are frozen here; `views` are (N, C, H, W) float, already normalised.

    Raises:
        ModelError: their numbers differ, or a pair's outputs cannot meet.
    """
    if len(teachers) != len(students):
        raise ModelError(
            f"The teacher has {len(teachers)} blocks and the student {len(students)}; they "
            "are trained in pairs. Give both the same number of cuts."
        )
    found = []
    own = views  # what the student's own blocks would pass on
    for number, (teacher, block) in enumerate(zip(teachers, students, strict=True)):
        before_it = views
        teacher.eval().requires_grad_(requires_grad=False)
        with torch.no_grad(), evaluating(block):
            wanted, got = teacher(views), block(own)
        before = _between(views, own, f"Student block {number} takes", number - 1)
        after = _between(got, wanted, f"Student block {number} puts out", number)
        student = block
        if before or after:
            student = Adapted(block, adapter(before), adapter(after))
            student.to(views.device, views.dtype)
        is_last = number == len(teachers) - 1
        soft = is_last and last_loss == "soft_cross_entropy"
        loss: BlockLoss = soft_cross_entropy if soft else mse_loss
        if variants := variant_blocks(block):
            loss = SumOverVariants(soft_cross_entropy if soft else relative_mse)
        if variants:
            _check_variants(block, number, before_it, wanted)
        found.append(BlockPair(teacher, student, loss))
        views, own = wanted, got
    return found


@torch.no_grad()
def inherit_variants(pairs: Sequence[BlockPair], views: Tensor) -> None:
    """Have all stand-ins of a block begin with what they share with their teacher's.

    Args:
        pairs: of all blocks.
        views: (N, C, H, W) images, which stand-ins are fitted to.
    """
    for pair in pairs:
        for several in variant_blocks(pair.student):
            several.inherit(pair.teacher, views)
        views = pair.teacher(views)


@torch.no_grad()
def weigh_channels(pairs: Sequence[BlockPair], views: Tensor) -> None:
    """Have squared errors be relative to what channels vary by over these images."""
    for pair in pairs:
        views = pair.teacher(views)
        if pair.loss is mse_loss:
            pair.loss = RelativeToChannels.of(views)


@torch.no_grad()
def _check_variants(block: nn.Module, number: int, views: Tensor, wanted: Tensor) -> None:
    """All stand-ins of a block put out what the block does, for images of this size.

    Raises:
        ModelError: one has another shape.
    """
    for several in variant_blocks(block):
        for name, variant in several.variants.items():
            with evaluating(variant):
                found = variant(views)
            if found.shape != wanted.shape:
                raise ModelError(
                    f"Block {number} as {name!r} puts out {_shape(found)}, and the teacher's "
                    f"{_shape(wanted)}, for images of this size. Leave {name} out of "
                    "student.variants."
                )


def _between(given: Tensor, wanted: Tensor, what: str, boundary: int) -> tuple[int, ...]:
    """Channels from and to which is adapted; empty when they are the same."""
    if given.shape == wanted.shape:
        return ()
    if given.dim() == wanted.dim() == 4 and given.shape[2:] == wanted.shape[2:]:
        return given.shape[1], wanted.shape[1]
    if given.dim() == wanted.dim() >= 3 and given.shape[:-1] == wanted.shape[:-1]:
        return given.shape[-1], wanted.shape[-1], *CHANNELS_LAST[2:]  # tokens, and maps
    raise ModelError(
        f"{what} {_shape(given)} where the other network has {_shape(wanted)} behind "
        f"block {boundary}: they cannot meet. Cut both networks where height and width, or the "
        "number of tokens, are the same; different channels get an adapter."
    )


def is_adapted(pairs: Sequence[BlockPair]) -> bool:
    return any(isinstance(pair.student, Adapted) for pair in pairs)


def as_adapted(
    pairs: Sequence[BlockPair], student: ModelSpec, cuts: Sequence[str]
) -> tuple[nn.Module, AdaptedModel]:
    """All student blocks as one network with their adapters, and the spec that makes it."""
    every = [
        p.student
        if isinstance(p.student, Adapted)
        else Adapted(p.student, nn.Identity(), nn.Identity())
        for p in pairs
    ]
    for pair, one in zip(pairs, every, strict=True):
        pair.student = one
    spec = AdaptedModel(
        student=student,
        cuts=tuple(cuts),
        before=tuple(channels_of(one.before) for one in every),
        after=tuple(channels_of(one.after) for one in every),
        mean=student.mean,
        std=student.std,
    )
    return nn.Sequential(*every), spec


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape[1:]))
