"""Where the students of a run lie."""

from pathlib import Path

from kdlab.errors import NotFoundError
from kdlab.experiment.folder import RunFolder
from kdlab.models.block_library import BlockLibrary
from kdlab.models.model import read_card


def student_file(run: RunFolder, member: str | None, *, best: bool) -> Path:
    """The .safetensors of a student; its card is the .json beside it.

    Args:
        run: its folder.
        member: a training by name; None is the one that the result describes.
        best: of the best epoch on validation instead of the last.

    Raises:
        NotFoundError: no such training, or it is not finished.
    """
    name = "best.safetensors" if best else "student.safetensors"
    source = member_folder(run, member) / name
    if not source.exists():
        raise NotFoundError(f"{source} does not exist: the member is not finished yet.")
    return source


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
