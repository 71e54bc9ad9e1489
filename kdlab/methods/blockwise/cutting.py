"""From two networks to pairs of blocks, as an experiment asks for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from typing import Literal

import torch
from torch import Tensor, nn

from kdlab.errors import ModelError
from kdlab.methods.blockwise.pairs import BlockPair, as_adapted, is_adapted, pairs_of
from kdlab.models.blocks import Cut, Cuttable, check_composition, operations
from kdlab.models.model import ModelSpec, Normalised

_PROBE = 2  # images the blocks are checked on


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where two networks are to be cut."""

    # teacher and student: modules the blocks end with; empty is `blocks` of them, chosen
    # here
    teacher: tuple[str, ...]
    student: tuple[str, ...]
    blocks: int  # how many, where no modules are named
    last_loss: Literal["soft_cross_entropy", "mse"]  # of the last block
    inherits: bool = False  # a student of the teacher's family begins with what it shares
    # of the others: each channel's error over its variance, or all as they are
    block_loss: Literal["relative", "mse"] = "mse"
    inputs: Literal["teacher", "student"] = "teacher"  # whose outputs student blocks get


@dataclass(frozen=True, slots=True)
class Cutting:
    """Both networks in pairs of blocks, ready to be trained."""

    pairs: list[BlockPair]  # on the device they were asked for
    shapes: list[tuple[int, ...]]  # of one row of each block's input
    outputs: list[tuple[int, ...]]  # of one row of each teacher block's output
    student: Normalised  # all student blocks as one model, with the teacher's statistics
    spec: ModelSpec  # of that model, which has adapters if there are any
    works: list[float]  # multiplications of each teacher block for one image
    # teacher_cuts and student_cuts: modules the blocks end with
    teacher_cuts: tuple[str, ...]
    student_cuts: tuple[str, ...]

    @property
    def same(self) -> list[int]:
        """Blocks that are the teacher's own, which nobody trains."""
        return [number for number, pair in enumerate(self.pairs) if pair.same]


def cut_both(
    cuts: Cuts,
    teacher: Normalised,
    student: Normalised,
    spec: ModelSpec,
    shape: Sequence[int],
    device: torch.device,
    *,
    inherited: bool = False,
) -> Cutting:
    """Cut both networks and put the pairs on a device.

    Args:
        cuts: where.
        teacher: trained.
        student: that is to learn.
        spec: of the student.
        shape: (C, H, W) of an image.
        device: of the pairs.
        inherited: whether the student has tensors of the teacher's: blocks may be wholly its.

    Raises:
        ModelError: a network that cannot be cut so, or blocks that cannot meet.
    """
    teacher, student = teacher.to(device), student.to(device)
    raw = torch.linspace(0, 255, _PROBE * shape[0] * shape[1] * shape[2])
    raw = raw.view(_PROBE, *shape).to(device)
    views = (raw - teacher.mean) / teacher.std
    teacher.eval()
    ours, theirs = Cuttable(student.net), Cuttable(teacher.net)
    if cuts.teacher:
        at_teacher, at_student = theirs.named(cuts.teacher), ours.named(cuts.student)
    else:
        at_teacher, at_student = _automatic(cuts.blocks, theirs, ours, views)
    teachers, students = theirs.blocks(at_teacher), ours.blocks(at_student)
    check_composition(teacher.net, teachers, views)
    check_composition(student.net, students, views)
    names = tuple(cut.after for cut in at_student)
    pairs = pairs_of(teachers, students, views, last_loss=cuts.last_loss)
    for pair in pairs if inherited else ():
        pair.same = _is_same(pair.teacher, pair.student)
    if cuts.inputs == "student":
        _follow(pairs)
    net: nn.Module = student.net
    mean, std = ((s.flatten() / 255).tolist() for s in (teacher.mean, teacher.std))
    spec = replace(spec, mean=tuple(mean), std=tuple(std))
    if is_adapted(pairs):
        net, spec = as_adapted(pairs, spec, names)
    whole = Normalised(net, mean, std, student.num_classes).to(device)
    inputs = _shapes([*teachers, nn.Identity()], views)
    return Cutting(
        pairs,
        inputs[:-1],
        inputs[1:],
        whole,
        spec,
        operations(teachers, views[:1]),
        tuple(cut.after for cut in at_teacher),
        names,
    )


def _follow(pairs: Sequence[BlockPair]) -> None:
    """Have student blocks get each other's outputs."""
    learnt = False
    for pair in pairs:
        pair.inputs = "student" if learnt else "equal"
        learnt = learnt or not pair.same


def _is_same(teacher: nn.Module, student: nn.Module) -> bool:
    """Whether both do the same operations with the same numbers."""
    own, theirs = student.state_dict(), teacher.state_dict()
    alike = getattr(student, "code", "") == getattr(teacher, "code", None)
    return alike and [*own] == [*theirs] and all(own[k].equal(theirs[k]) for k in own)


@torch.no_grad()
def _shapes(blocks: Sequence[nn.Module], views: Tensor) -> list[tuple[int, ...]]:
    found = []
    for block in blocks:
        found.append(tuple(views.shape[1:]))
        views = block(views)
    return found


def _automatic(
    count: int, teacher: Cuttable, student: Cuttable, views: Tensor
) -> tuple[list[Cut], list[Cut]]:
    """Teacher blocks of about the same work, and the student cut where images are alike.

    Behind a student's cut the image has the size it has behind the teacher's; among all
    such cuts those that leave about as much of the student's work behind them.
    """
    chosen = teacher.balanced(count, lambda pieces: operations(pieces, views))
    ends, own = teacher.blocks(chosen), student.distinct()
    pieces = student.blocks(own)
    wanted = list(zip(_sizes(ends, views), _depths(ends, views), strict=True))
    places = list(zip(_sizes(pieces, views), _depths(pieces, views), strict=True))
    found = _nearest(wanted[:-1], places[:-1])
    if found is None:
        sizes = ", ".join(_text(size) for size, _ in wanted[:-1])
        raise ModelError(
            f"The student cannot be cut where images are {sizes}, as behind the {count} blocks "
            f"of the teacher ({', '.join(cut.after for cut in chosen)}). Name teacher_cuts and "
            f"student_cuts, or take fewer than {count} blocks."
        )
    return chosen, [own[k] for k in found]


_OF_TOKENS = 2  # dimensions of a row: tokens and channels
_OF_MAPS = 3  # height, width and channels

_Size = tuple[int | str, ...]
_Place = tuple[_Size, float]  # size of the image there, share of the work before


def _nearest(wanted: Sequence[_Place], places: Sequence[_Place]) -> list[int] | None:
    """Ascending places of the wanted sizes whose shares differ least in sum, or None."""
    best: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}  # by last place taken
    for size, share in wanted:
        best = {
            k: min(
                (cost + abs(at - share), [*taken, k])
                for last, (cost, taken) in best.items()
                if last < k
            )
            for k, (here, at) in enumerate(places)
            if here == size and any(last < k for last in best)
        }
    return min(best.values())[1] if best else None


def _depths(blocks: Sequence[nn.Module], views: Tensor) -> list[float]:
    """Share of all work that is done behind each block."""
    done = list(accumulate(operations(blocks, views)))
    return [work / done[-1] for work in done]


def _sizes(blocks: Sequence[nn.Module], views: Tensor) -> list[_Size]:
    """Height and width behind each block, or number of tokens; empty where nothing has a place."""
    shapes = _shapes([*blocks, nn.Identity()], views)[1:]
    return [_size(shape, views.shape[2] / views.shape[3]) for shape in shapes]


def _size(shape: tuple[int, ...], form: float) -> _Size:
    """Place of one row's output; a map has the image's `form` (H / W), channels first or last."""
    if len(shape) == _OF_TOKENS:
        return shape[:1]
    if len(shape) != _OF_MAPS:
        return shape[1:]
    first, last = (abs(log(h / w / form)) for h, w in (shape[1:], shape[:2]))
    return (*shape[:2], "channels last") if last < first else shape[1:]


def _text(size: _Size) -> str:
    return "×".join(map(str, size)) if size else "flat"
