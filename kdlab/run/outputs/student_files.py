"""The files of a run's students, and the choice among several."""

import math
from collections.abc import Sequence
from pathlib import Path

from kdlab.config.home import recall_as
from kdlab.errors import BadInput, NotFoundError, WeightsError
from kdlab.events.event import OtherEvent
from kdlab.events.log import select
from kdlab.events.runs import RunStarted
from kdlab.experiment.folder import RunFolder
from kdlab.models.block_library import BlockLibrary
from kdlab.models.model import read_card
from kdlab.train.result import MemberResult


def started(run: RunFolder) -> RunStarted:
    """Return the first start in a run's log; BadInput where it is damaged."""
    why = "no such event"
    try:
        match next(select(run.events, "run_started"), None):
            case RunStarted() as begun:
                return begun
            case OtherEvent() as damaged:
                why = damaged.why or "a field is missing"
    except OSError as error:
        why = str(error)
    raise BadInput(
        f"Run {run.run_id} has a damaged log: {run.events} does not tell how it started ({why}). "
        "Its students are intact. Restore the log."
    )


def student_file(run: RunFolder, member: str | None, *, best: bool) -> tuple[Path, str]:
    """Return the .safetensors of a student (its card is the .json beside it), and why it is taken.

    Args:
        run: folder of the run.
        member: name of a training, which needs no reason; None takes the best on validation.
        best: weights of the best epoch on validation instead of the last.

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
    """A sentence on which of several trainings an export takes; empty for a single one."""
    order = _on_validation(run, best=False)
    return f"kdlab export takes {_words(order)}." if order else ""


def _on_validation(run: RunFolder, *, best: bool) -> list[tuple[str, float]]:
    """Trainings with top-1 on validation, the best first; none unless two or more all have it.

    Among equals those with a teacher come first, then by name.
    """
    ranked = list[tuple[MemberResult, float]]()
    for path in sorted((run.path / "members").glob("*/*/result.json")):
        facts = recall_as(MemberResult, path, "Its student may not be taken.")
        if facts is not None and is_student(path.parent):
            ranked.append((facts, facts.validation_best if best else facts.validation_last))
    if len(ranked) < 2 or any(math.isnan(top1) for _, top1 in ranked):
        return []
    ranked.sort(key=lambda pair: (-pair[1], pair[0].teacher_top1 is None))
    return [(facts.member, top1) for facts, top1 in ranked]


def _words(order: Sequence[tuple[str, float]]) -> str:
    (name, top1), *others = order
    rest = "; ".join(f"{other} has {share:.1f}" for other, share in others[:3])
    more = f"; {len(others) - 3} more have less" if len(others) > 3 else ""
    return f"{name}, {top1:.1f} % on validation; {rest}{more}"


def member_folder(run: RunFolder, name: str | None) -> Path:
    """Return the folder of a finished training.

    Raises:
        NotFoundError: no finished training has this name.
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
    """Return the folder of the final student: `whole`, if the assembled blocks were trained."""
    trained = member / "whole"
    return trained if (trained / "student.json").is_file() else member


def is_student(folder: Path) -> bool:
    """Return whether a folder holds a student, and not a library of blocks to choose from."""
    newest = newest_of(folder) / "student.json"
    if not newest.is_file():
        return False
    kind = read_card(newest)["model"].get("type")
    if not isinstance(kind, str):
        raise WeightsError(f"{newest} is damaged: its model has no type. Train it again.")
    return kind != BlockLibrary.component


def was_taught(run: RunFolder) -> bool:
    """Return whether the run used its teacher: an unused one need not even be trained."""
    # Results of trainings only: a method may keep other files below them.
    written = run.path.glob("members/*/*/result.json")
    reports = [MemberResult.read(path.parent) for path in written]
    return any(report is not None and report.teacher_top1 is not None for report in reports)
