"""Pairs of blocks: each student block learns its teacher block's output (section II-A).

Student block i gets the output of teacher block i - 1 and minimises the difference between its
output and teacher block i's. So no student block depends on another one's weights, and all can be
trained at the same time, each updated when it is ready.
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
    """Compute the loss of a pair's student on these rows, in the recipe's precision.

    `source` (N, ...) are the student's inputs, `target` (N, ...) the teacher's outputs. The
    student's detached outputs are appended to `outputs`.
    """
    with train_step.precision():
        output = _as_exact_as(target, pair.student(source[rows]))
    if outputs is not None:
        outputs.append(output.detach())
    return pair.loss(output, target[rows])


def _as_exact_as(target: Tensor, output: Tensor | Sequence[Tensor]) -> Any:
    """Cast a block's outputs, one for each variant, to the target's precision."""
    if isinstance(output, Tensor):
        return output.to(target.dtype)
    return [variant.to(target.dtype) for variant in output]


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Cross entropy with the teacher's softmax, for logits; as in the authors' code."""
    return cross_entropy(student, teacher.softmax(1))


@dataclass(frozen=True, slots=True)
class SumOverVariants:
    """The loss of a block with several variants, each of which learns by itself."""

    loss: BlockLoss  # of one variant

    def __call__(self, student: Tensor | Sequence[Tensor], teacher: Tensor) -> Tensor:
        return torch.stack([self.loss(output, teacher) for output in student]).sum()


def relative_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of the squared error over the teacher's mean square (Puzzle).

    So blocks weigh alike. Devices that share a batch add up their shares of the mean.
    """
    apart = (student - teacher).square().flatten(1).mean(1)
    return (apart / teacher.square().flatten(1).mean(1).clamp_min(_NOTHING)).mean()


@dataclass(frozen=True, slots=True)
class RelativeToChannels:
    """Squared error over the variance of the teacher's channels, so that all weigh alike."""

    # One over the variance over images and places, which counts as a thousandth of the mean
    # variance at least
    weight: Tensor

    @classmethod
    def from_outputs(cls, outputs: Tensor) -> "RelativeToChannels":
        """Weigh by a teacher block's outputs: (N, C, H, W), (N, tokens, C) or (N, C)."""
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
    """Pair teacher and student blocks, with adapters where their channels differ.

    Freezes the teacher's blocks. `views` are (N, C, H, W), normalised; blocks are checked on them.

    Raises:
        ModelError: the numbers of blocks differ, or a pair's outputs do not fit together.
    """
    if len(teachers) != len(students):
        raise ModelError(
            f"The teacher has {len(teachers)} blocks and the student {len(students)}; they "
            "are trained in pairs. Give both the same number of cuts."
        )
    pairs = []
    student_views = views  # outputs of the student's block before
    for number, (teacher, block) in enumerate(zip(teachers, students, strict=True)):
        teacher.eval().requires_grad_(requires_grad=False)
        with torch.no_grad(), evaluating(block):
            wanted, got = teacher(views), block(student_views)
        before = _between(views, student_views, f"Student block {number} takes", number - 1)
        after = _between(got, wanted, f"Student block {number} puts out", number)
        student = block
        if before or after:
            student = Adapted(block, adapter(before), adapter(after))
            student.to(views.device, views.dtype)
        is_last = number == len(teachers) - 1
        soft = is_last and last_loss == "soft_cross_entropy"
        loss: BlockLoss = soft_cross_entropy if soft else mse_loss
        if variant_blocks(block):
            loss = SumOverVariants(soft_cross_entropy if soft else relative_mse)
            _check_variants(block, number, views, wanted)
        pairs.append(BlockPair(teacher, student, loss))
        views, student_views = wanted, got
    return pairs


@torch.no_grad()
def inherit_variants(pairs: Sequence[BlockPair], views: Tensor) -> None:
    """Fit all stand-ins of each block to their teacher block on these views (N, C, H, W)."""
    for pair in pairs:
        for several in variant_blocks(pair.student):
            several.inherit(pair.teacher, views)
        views = pair.teacher(views)


@torch.no_grad()
def weigh_channels(pairs: Sequence[BlockPair], views: Tensor) -> None:
    """Make squared errors relative to the channels' variance over these views (N, C, H, W)."""
    for pair in pairs:
        views = pair.teacher(views)
        if pair.loss is mse_loss:
            pair.loss = RelativeToChannels.from_outputs(views)


@torch.no_grad()
def _check_variants(block: nn.Module, number: int, views: Tensor, wanted: Tensor) -> None:
    """Raise ModelError where a stand-in's output has another shape than the block's."""
    for several in variant_blocks(block):
        for name, variant in several.variants.items():
            with evaluating(variant):
                output = variant(views)
            if output.shape != wanted.shape:
                raise ModelError(
                    f"Block {number} as {name!r} puts out {_shape(output)}, and the teacher's "
                    f"{_shape(wanted)}, for images of this size. Leave {name} out of "
                    "student.variants."
                )


def _between(got: Tensor, wanted: Tensor, what: str, boundary: int) -> tuple[int, ...]:
    """Return the channels to adapt from and to; empty where the shapes are the same."""
    if got.shape == wanted.shape:
        return ()
    if got.dim() == wanted.dim() == 4 and got.shape[2:] == wanted.shape[2:]:
        return got.shape[1], wanted.shape[1]
    if got.dim() == wanted.dim() >= 3 and got.shape[:-1] == wanted.shape[:-1]:
        return got.shape[-1], wanted.shape[-1], *CHANNELS_LAST[2:]  # tokens, and maps
    raise ModelError(
        f"{what} {_shape(got)} where the other network has {_shape(wanted)} behind "
        f"block {boundary}: they cannot meet. Cut both networks where height and width, or the "
        "number of tokens, are the same; different channels get an adapter."
    )


def is_adapted(pairs: Sequence[BlockPair]) -> bool:
    return any(isinstance(pair.student, Adapted) for pair in pairs)


def as_adapted(
    pairs: Sequence[BlockPair], student: ModelSpec, cuts: Sequence[str]
) -> tuple[nn.Module, AdaptedModel]:
    """Join all student blocks and their adapters in one network; return it with its spec."""
    every: list[Adapted] = []
    for pair in pairs:
        student_block = pair.student
        if not isinstance(student_block, Adapted):
            student_block = Adapted(student_block, nn.Identity(), nn.Identity())
        pair.student = student_block
        every.append(student_block)
    spec = AdaptedModel(
        student=student,
        cuts=tuple(cuts),
        before=tuple(channels_of(adapted.before) for adapted in every),
        after=tuple(channels_of(adapted.after) for adapted in every),
        mean=student.mean,
        std=student.std,
    )
    return nn.Sequential(*every), spec


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape[1:]))
