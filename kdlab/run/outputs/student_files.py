"""Where the students of a run lie, and which of several is taken."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kdlab.config.home import recall_as
from kdlab.errors import NotFoundError
from kdlab.experiment.folder import RunFolder
from kdlab.models.block_library import BlockLibrary
from kdlab.models.model import read_card
from kdlab.train.result import MemberResult


@dataclass(frozen=True, slots=True)
class _Validated:
    """What a member's result.json has to choose by."""

    member: str
    teacher_top1: float | None
    validation_last: float  # percent; NaN where nothing was validated
    validation_best: float


def student_file(run: RunFolder, member: str | None, *, best: bool) -> tuple[Path, str]:
    """The .safetensors of a student, its card is the .json beside it; why it is taken of several.

    Args:
        run: its folder.
        member: a training by name, which needs no reason; None is the best on validation.
        best: of the best epoch on validation instead of the last.

    Raises:
        NotFoundError: no such training, or it is not finished.
    """
    name, why = "best.safetensors" if best else "student.safetensors", ""
    if member is None and (order := _on_validation(run, best=best)):
        member, why = order[0][0], f"taken: {_words(order)}"
    source = member_folder(run, member) / name
    if not source.exists():
        raise NotFoundError(f"{source} does not exist: the member is not finished yet.")
    return source, why


def better_of(run: RunFolder) -> str:
    """What `kdlab export` and `kdlab predict` take of several trainings; empty for one."""
    order = _on_validation(run, best=False)
    return f"kdlab export takes {_words(order)}." if order else ""


def _on_validation(run: RunFolder, *, best: bool) -> list[tuple[str, float]]:
    """Trainings with their top-1 on validation, the best first; none where not all of two have it.

    Of equal ones those with a teacher come first, then by name.
    """
    found = list[tuple[_Validated, float]]()
    for path in sorted((run.path / "members").glob("*/*/result.json")):
        own = recall_as(_Validated, path, "Its student may not be taken.")
        if own is not None and is_student(path.parent):
            found.append((own, own.validation_best if best else own.validation_last))
    if len(found) < 2 or any(math.isnan(top1) for _, top1 in found):
        return []
    found.sort(key=lambda one: (-one[1], one[0].teacher_top1 is None))
    return [(own.member, top1) for own, top1 in found]


def _words(order: Sequence[tuple[str, float]]) -> str:
    (name, top1), *others = order
    rest = "; ".join(f"{other} has {share:.1f}" for other, share in others[:3])
    more = f"; {len(others) - 3} more have less" if len(others) > 3 else ""
    return f"{name}, {top1:.1f} % on validation; {rest}{more}"


def member_folder(run: RunFolder, name: str | None) -> Path:
    """The folder of a training that has ended.

    Raises:
        NotFoundError: there is none of this name.
    """
    members = [p.parent for p in run.of_members("student.json") if is_student(p.parent)]
    every = [m.relative_to(run.path / "members").as_posix() for m in members]
    names = [name for name in every if not name.endswith("/whole")]
    described = (run.status().result or {}).get("source")
    chosen = [n for n in names if n == name]
    if name is None:
        chosen = [n for n in names if n.split("/")[0] == described] or names
    if not chosen:
        raise NotFoundError(
            f"Run {run.run_id} has no finished member {name or ''}. "
            f"Finished: {', '.join(names) or 'none'}."
        )
    return newest_of(run.member(chosen[0]))


def newest_of(member: Path) -> Path:
    """Where a training left its student: blocks were distilled, and then the whole trained."""
    whole = member / "whole"
    return whole if (whole / "student.json").is_file() else member


def is_student(folder: Path) -> bool:
    """Whether what lies there, or will, is a student, and not all that one is chosen from."""
    newest = newest_of(folder) / "student.json"
    return newest.is_file() and (
        read_card(newest)["model"]["type"] != BlockLibrary.component
    )


def was_taught(run: RunFolder) -> bool:
    """Whether it had a teacher: one that was never asked is not trained to be looked at."""
    # Of its trainings alone: a method keeps what it likes below them.
    written = run.path.glob("members/*/*/result.json")
    kept = [MemberResult.read(path.parent) for path in written]
    return any(report is not None and report.teacher_top1 is not None for report in kept)
