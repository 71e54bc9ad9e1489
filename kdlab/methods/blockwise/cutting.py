"""Cut teacher and student into pairs of blocks."""

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
    """Where to cut two networks, and how their blocks learn."""

    # Modules that the blocks end with; empty: `blocks` of about the same work
    teacher: tuple[str, ...]
    student: tuple[str, ...]
    blocks: int  # how many, where no modules are named
    last_loss: Literal["soft_cross_entropy", "mse"]  # of the last block
    inherits: bool = False  # a student of the teacher's family begins with shared tensors
    # Of the other blocks; `relative` divides by the variance of each channel
    block_loss: Literal["relative", "mse"] = "mse"
    inputs: Literal["teacher", "student"] = "teacher"  # whose outputs student blocks get


@dataclass(frozen=True, slots=True)
class Cutting:
    """Both networks in pairs of blocks, ready for training."""

    pairs: list[BlockPair]
    shapes: list[tuple[int, ...]]  # of one row of each block's input
    outputs: list[tuple[int, ...]]  # of one row of each teacher block's output
    student: Normalised  # all student blocks as one model, with the teacher's statistics
    spec: ModelSpec  # of that model, with its adapters
    works: list[float]  # multiplications of each teacher block for one image
    # Modules that the blocks end with
    teacher_cuts: tuple[str, ...]
    student_cuts: tuple[str, ...]

    @property
    def same(self) -> list[int]:
        """Numbers of the blocks that are the teacher's, weights and all, and are not trained."""
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

    `spec` is the student's, `shape` an image's (C, H, W). Where the student `inherited` tensors of
    the teacher's, whole blocks may be equal.

    Raises:
        ModelError: a network cannot be cut there, or blocks do not fit together.
    """
    teacher, student = teacher.to(device), student.to(device)
    pixels = torch.linspace(0, 255, _PROBE * shape[0] * shape[1] * shape[2])
    pixels = pixels.view(_PROBE, *shape).to(device)
    views = (pixels - teacher.mean) / teacher.std
    teacher.eval()
    student_net, teacher_net = Cuttable(student.net), Cuttable(teacher.net)
    if cuts.teacher:
        teacher_cuts, student_cuts = (
            teacher_net.cuts_at(cuts.teacher),
            student_net.cuts_at(cuts.student),
        )
    else:
        teacher_cuts, student_cuts = _automatic(
            cuts.blocks, teacher_net, student_net, views
        )
    teachers, students = teacher_net.blocks(teacher_cuts), student_net.blocks(student_cuts)
    check_composition(teacher.net, teachers, views)
    check_composition(student.net, students, views)
    names = _names(student_cuts)
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
    model = Normalised(net, mean, std, student.num_classes).to(device)
    inputs = _shapes([*teachers, nn.Identity()], views)
    works, teacher_names = operations(teachers, views[:1]), _names(teacher_cuts)
    return Cutting(pairs, inputs[:-1], inputs[1:], model, spec, works, teacher_names, names)


def _names(cuts: Sequence[Cut]) -> tuple[str, ...]:
    return tuple(cut.after for cut in cuts)


def _follow(pairs: Sequence[BlockPair]) -> None:
    """Give student blocks each other's outputs."""
    learnt = False
    for pair in pairs:
        pair.inputs = "student" if learnt else "equal"
        learnt = learnt or not pair.same


def _is_same(teacher: nn.Module, student: nn.Module) -> bool:
    """Return whether both do the same operations with the same numbers."""
    student_state, teacher_state = student.state_dict(), teacher.state_dict()
    same_code = getattr(student, "code", "") == getattr(teacher, "code", None)
    return (
        same_code
        and [*student_state] == [*teacher_state]
        and all(student_state[k].equal(teacher_state[k]) for k in student_state)
    )


@torch.no_grad()
def _shapes(blocks: Sequence[nn.Module], views: Tensor) -> list[tuple[int, ...]]:
    shapes = []
    for block in blocks:
        shapes.append(tuple(views.shape[1:]))
        views = block(views)
    return shapes


def _automatic(
    count: int, teacher: Cuttable, student: Cuttable, views: Tensor
) -> tuple[list[Cut], list[Cut]]:
    """Cut the teacher into blocks of about equal work, and the student to match.

    Behind a student's cut the image has the size that it has behind the teacher's cut. Among
    such cuts the student's share of work before it is the nearest to the teacher's.
    """
    teacher_cuts = teacher.balanced_cuts(
        count, lambda student_blocks: operations(student_blocks, views)
    )
    teacher_blocks, student_cuts = teacher.blocks(teacher_cuts), student.distinct_cuts()
    student_blocks = student.blocks(student_cuts)
    teacher_places = _places(teacher_blocks, views)
    student_places = _places(student_blocks, views)
    indices = _nearest(teacher_places[:-1], student_places[:-1])
    if indices is None:
        sizes = ", ".join(_text(size) for size, _ in teacher_places[:-1])
        raise ModelError(
            f"The student cannot be cut where images are {sizes}, as behind the {count} blocks "
            f"of the teacher ({', '.join(_names(teacher_cuts))}). Name teacher_cuts and "
            f"student_cuts, or take fewer than {count} blocks."
        )
    return teacher_cuts, [student_cuts[k] for k in indices]


_OF_TOKENS = 2  # dimensions of a row: tokens and channels
_OF_MAPS = 3  # height, width and channels

_Size = tuple[int | str, ...]
_Place = tuple[_Size, float]  # size of the image there, share of the work before


def _nearest(wanted: Sequence[_Place], places: Sequence[_Place]) -> list[int] | None:
    """Return ascending places of the wanted sizes whose shares differ least in sum, or None."""
    best: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}  # by last place taken
    for size, share in wanted:
        best = {
            k: min(
                (cost + abs(at - share), [*taken, k])
                for last, (cost, taken) in best.items()
                if last < k
            )
            for k, (place, at) in enumerate(places)
            if place == size and any(last < k for last in best)
        }
    return min(best.values())[1] if best else None


def _places(blocks: Sequence[nn.Module], views: Tensor) -> list[_Place]:
    """Return the size behind each block, and the share of work up to its end."""
    shapes, form = (
        _shapes([*blocks, nn.Identity()], views)[1:],
        views.shape[2] / views.shape[3],
    )
    done = list(accumulate(operations(blocks, views)))
    return [(_size(s, form), work / done[-1]) for s, work in zip(shapes, done, strict=True)]


def _size(shape: tuple[int, ...], form: float) -> _Size:
    """Return a row's height and width, or tokens; a map has the image's `form` (H / W)."""
    if len(shape) == _OF_TOKENS:
        return shape[:1]
    if len(shape) != _OF_MAPS:
        return shape[1:]
    first, last = (abs(log(h / w / form)) for h, w in (shape[1:], shape[:2]))
    return (*shape[:2], "channels last") if last < first else shape[1:]


def _text(size: _Size) -> str:
    return "×".join(map(str, size)) if size else "flat"
