"""Pairs of blocks: each student block learns its teacher block's output (section II-A).

Student block i gets what teacher block i - 1 put out, and minimises the difference of its
own output from teacher block i's. So no student block depends on another one's weights:
that is why they can be trained apart, at the same time, and updated when each is ready.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from kdlab.errors import ModelError

BlockLoss = Callable[[Tensor, Tensor], Tensor]  # (student's, teacher's) -> mean over rows


@dataclass(slots=True)
class BlockPair:
    teacher: nn.Module  # frozen, in eval mode
    student: nn.Module | None  # None: only its teacher runs, for the blocks behind it
    loss: BlockLoss


class Adapted(nn.Module):
    """A student block between 1×1 convolutions from and to the teacher's channels.

    They belong to the student: its blocks, one behind the other, speak the teacher's
    channels at every boundary.
    """

    def __init__(self, block: nn.Module, before: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.before, self.block, self.after = before, block, after

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.after(self.block(self.before(x)))
        return adapted


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Of the last block, whose outputs are logits; as the authors' code has it."""
    return cross_entropy(student, teacher.softmax(1))


def pairs_of(
    teachers: Sequence[nn.Module],
    students: Sequence[nn.Module],
    views: Tensor,
    *,
    last_loss: Literal["soft_cross_entropy", "mse"] = "soft_cross_entropy",
) -> list[BlockPair]:
    """Teacher and student blocks that belong together, checked on some views.

    Args:
        teachers: blocks of the teacher, in order; they are frozen here.
        students: as many blocks of the student.
        views: (N, C, H, W) float, already normalised.
        last_loss: of the last block.

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
        teacher.eval().requires_grad_(requires_grad=False)
        with torch.no_grad():
            wanted = teacher(views)
            got = _eval(block, own)
        before = _adapter(views, own, f"Student block {number} takes", number - 1)
        after = _adapter(got, wanted, f"Student block {number} puts out", number)
        student = block
        if not (isinstance(before, nn.Identity) and isinstance(after, nn.Identity)):
            student = Adapted(block, before, after).to(views.device, views.dtype)
        is_last = number == len(teachers) - 1
        soft = is_last and last_loss == "soft_cross_entropy"
        found.append(BlockPair(teacher, student, soft_cross_entropy if soft else mse_loss))
        views, own = wanted, got
    return found


def _eval(block: nn.Module, views: Tensor) -> Tensor:
    mode = block.training
    block.eval()
    output: Tensor = block(views)
    block.train(mode)
    return output


def _adapter(given: Tensor, wanted: Tensor, what: str, boundary: int) -> nn.Module:
    """From one number of channels to another; nothing when they are the same."""
    if given.shape == wanted.shape:
        return nn.Identity()
    if not (given.dim() == wanted.dim() == 4 and given.shape[2:] == wanted.shape[2:]):
        raise ModelError(
            f"{what} {_shape(given)} where the other network has {_shape(wanted)} behind "
            f"block {boundary}: they cannot meet. Cut both networks where height and width "
            "are the same; different channels get an adapter."
        )
    return nn.Conv2d(given.shape[1], wanted.shape[1], 1)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape[1:]))
