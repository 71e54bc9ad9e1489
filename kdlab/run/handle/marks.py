"""Marks of a run or sweep: tags, a note, archived or not; and its deletion."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdlab.codec import MessageError, from_builtins, to_builtins
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
    """Change fields of the run's `Marks`; BadInput where a value is not allowed."""
    never_anew.add(run.path)
    try:
        new = from_builtins(Marks, to_builtins(marks_of(run)) | to_builtins(changes))
        write_json(run.path / _FILE, to_builtins(new))
    except (MessageError, OSError) as error:
        raise BadInput(f"Run {run.run_id} is not marked: {error}.") from error
    if changes.keys() & {"tags", "note"}:
        try:
            mlflow, run_ids = _mlflow_runs(run)
            for run_id in run_ids:
                assert mlflow is not None
                mlflow.set_tag(run_id, "kdlab.tags", " ".join(new.tags))
                mlflow.set_tag(run_id, "kdlab.note", new.note)
        except Exception as error:  # MLflow's, SQLAlchemy's or the system's
            text = f"The marks of run {run.run_id} did not reach MLflow: {error}"
            logging.getLogger("kdlab").warning(text)


def delete(run: RunFolder, sure: Callable[[str], bool]) -> str:
    """See `JobHandle.delete`."""
    name, state = os.path.relpath(run.path, runs_folder()), run.status().state
    if state in UNDER_WAY:
        raise BadInput(f"{name} is {state}; stop it first: kdlab stop {name}")
    files = [os.path.join(at, name) for at, _, names in os.walk(run.path) for name in names]
    size = sum(os.lstat(file).st_size for file in files) / 1e6
    students = sum(file.endswith("/student.safetensors") for file in files)
    words = f"{name} ({state}): {size:,.1f} MB, {len(files):,} files, students: {students}"
    if not sure(words):
        return f"kept: {words}"
    trash = run.path.parent / ".deleted"
    try:
        with run.held():
            words += _delete_from_mlflow(run)
            make_private(trash)
            # In one step: an interrupt leaves no half of a run; the next delete clears the rest.
            run.path.rename(trash / f"{run.run_id}.{os.getpid()}")
        shutil.rmtree(trash)
    except OSError as error:
        raise BadInput(f"{run.path} is not deleted, or not all of it: {error}.") from error
    return f"deleted: {words}"


def _mlflow_runs(run: RunFolder) -> "tuple[MlflowClient | None, list[str]]":
    """The client and the ids of this run's MLflow runs, checked: another user may own the file."""
    location = MlflowLocation.read(run.path)
    if location.uri is None:
        return None, []
    from kdlab.tracking.store import client  # 2 s

    mlflow = client(location.uri)
    tags = {key: mlflow.get_run(key).data.tags for key in location.runs.values()}
    return mlflow, [key for key in tags if tags[key].get("kdlab.run_id") == run.run_id]


def _delete_from_mlflow(run: RunFolder) -> str:
    """Mark its MLflow runs as deleted, and return the outcome in words."""
    try:
        mlflow, run_ids = _mlflow_runs(run)
        if mlflow is None:
            return ""
        for run_id in run_ids:
            mlflow.delete_run(run_id)
    except Exception as error:  # MLflow's, SQLAlchemy's or the system's
        return f"; MLflow still has it ({short(str(error))})"
    done = f"{len(run_ids)} runs in MLflow are marked as deleted (mlflow gc removes them)"
    return f"; {done if run_ids else 'what MLflow has of it stays there'}"
