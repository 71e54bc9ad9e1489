"""What people make of a run or a sweep that has ended: tags, a note, out of sight, or gone."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kdlab.codec import to_builtins
from kdlab.config.home import make_private, never_anew, recall_as, runs_folder, write_json
from kdlab.config.limits import refusal
from kdlab.errors import BadInput, short
from kdlab.experiment.folder import UNDER_WAY, RunFolder
from kdlab.tracking.in_mlflow import MlflowLocation

if TYPE_CHECKING:
    from mlflow import MlflowClient

_FILE, _TAG = "marks.json", re.compile(r"[\w.:+-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False

    def __post_init__(self) -> None:
        if len(self.tags) > 20 or not all(map(_TAG.fullmatch, self.tags)):
            raise ValueError("up to 20 tags of up to 40 letters, digits or .:+- are taken")
        if len(self.note) > 2000 or refusal(self.note):
            raise ValueError("a note is text of up to 2,000 characters")

    def __str__(self) -> str:
        note = short(" ".join(self.note.split()), 60)
        return " · ".join(filter(None, (*self.tags, note, "archived" * self.archived)))


def marks_of(run: RunFolder) -> Marks:
    return recall_as(Marks, run.path / _FILE, "It is shown without any.") or Marks()


def mark(run: RunFolder, **changes: object) -> None:
    """Change fields of its `Marks`; BadInput where they would not be any."""
    never_anew.add(run.path)
    try:
        new = replace(marks_of(run), **changes)  # type: ignore[arg-type]  # typed by who calls
        write_json(run.path / _FILE, to_builtins(new))
    except (ValueError, OSError) as error:
        raise BadInput(f"Run {run.run_id} is not marked: {error}.") from error
    if changes.keys() & {"tags", "note"}:
        try:
            mlflow, own = _of_mlflow(run)
            for one in own:
                assert mlflow is not None
                mlflow.set_tag(one, "kdlab.tags", " ".join(new.tags))
                mlflow.set_tag(one, "kdlab.note", new.note)
        except Exception as error:  # MLflow's, SQLAlchemy's or the system's
            said = f"MLflow has not what run {run.run_id} is marked with: {error}"
            logging.getLogger("kdlab").warning(said)


def delete(run: RunFolder, sure: Callable[[str], bool]) -> str:
    """See `JobHandle.delete`."""
    name, state = os.path.relpath(run.path, runs_folder()), run.status().state
    if state in UNDER_WAY:
        raise BadInput(f"{name} is {state}, and stays. End it first: kdlab stop {name}")
    files = [os.path.join(at, one) for at, _, names in os.walk(run.path) for one in names]
    size = sum(os.lstat(file).st_size for file in files) / 1e6
    students = sum(file.endswith("/student.safetensors") for file in files)
    words = f"{name} ({state}): {size:,.1f} MB, {len(files):,} files, students: {students}"
    if not sure(words):
        return f"kept: {words}"
    trash = run.path.parent / ".deleted"
    try:
        with run.held():
            words += _forgotten(run)
            make_private(trash)
            # In one step: who is interrupted leaves no half of a run, and the next one clears up.
            run.path.rename(trash / f"{run.run_id}.{os.getpid()}")
        shutil.rmtree(trash)
    except OSError as error:
        raise BadInput(f"{run.path} is not deleted, or not all of it: {error}.") from error
    return f"deleted: {words}"


def _of_mlflow(run: RunFolder) -> "tuple[MlflowClient | None, list[str]]":
    """The client, and ids of the runs of its own there: the file may come from somebody else."""
    known = MlflowLocation.read(run.path)
    if known.uri is None:
        return None, []
    from kdlab.tracking.store import client  # 2 s

    mlflow = client(known.uri)
    tags = {one: mlflow.get_run(one).data.tags for one in known.runs.values()}
    return mlflow, [one for one in tags if tags[one].get("kdlab.run_id") == run.run_id]


def _forgotten(run: RunFolder) -> str:
    """Have MLflow mark its runs as deleted; what is to be said of it."""
    try:
        mlflow, own = _of_mlflow(run)
        if mlflow is None:
            return ""
        for one in own:
            mlflow.delete_run(one)
    except Exception as error:  # MLflow's, SQLAlchemy's or the system's
        return f"; MLflow still has it ({short(str(error))})"
    done = f"{len(own)} runs in MLflow are marked as deleted (mlflow gc removes them)"
    return f"; {done if own else 'what MLflow has of it stays there'}"
