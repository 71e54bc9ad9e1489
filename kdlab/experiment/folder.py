"""A run folder: what lies where, and the run's status in it.

runs/<run_id>/
    spec.yaml      the resolved spec; experiment.json its name and hash, and the format
    events.jsonl   everything that happened, append-only: the truth
    status.json    state, process, result
    control.jsonl  what somebody asked of it while it went on (run/handle/control.py)
    run.log        what the process printed
    members/<source>/seed<n>/   checkpoints, student.safetensors, result.json, model card
"""

import json
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import yaml

from kdlab.config.folders import nearest
from kdlab.config.home import runs_folder, write_json
from kdlab.errors import BadInput, NotFoundError
from kdlab.events.log import select
from kdlab.events.runs import RunStarted

FORMAT = 2  # of the folder with its spec, events and checkpoints; kdlab 0.1 wrote format 1
ENDED = ("finished", "failed", "stopped", "lost")


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def since(self) -> float:
        """When it was started or resumed last; seconds since 1970."""
        return float(self.raw_status().get("created", 0.0))

    def member(self, name: str) -> Path:
        return self.path / "members" / name

    def experiment(self) -> dict[str, Any]:
        return _read(self.path / "experiment.json")

    def resolved(self) -> dict[str, Any]:
        """The resolved spec, as it was written."""
        text = (self.path / "spec.yaml").read_text(encoding="utf-8")
        tree: dict[str, Any] = yaml.safe_load(text)
        return tree

    def check_format(self) -> None:
        """Whether this version of kdlab can go on with what lies here.

        Raises:
            BadInput: another version wrote it.
        """
        found = self.experiment().get("format", 1)
        if found == FORMAT:
            return
        begun = next(select(self.events, RunStarted), None)
        known = {} if begun is None else begun.versions
        writer = known.get("kdlab", "0.1" if found == 1 else "unknown")
        raise BadInput(
            f"Run {self.run_id} has format {found}, written by kdlab {writer}; this is "
            f"{version('kdlab')}, which reads format {FORMAT}. Its result, student and events "
            f"can still be looked at; to train on, use the kdlab that wrote it, or run "
            f"{self.experiment().get('experiment', 'the experiment')} again."
        )

    def raw_status(self) -> dict[str, Any]:
        return _read(self.path / "status.json")

    def write_status(self, **facts: Any) -> None:
        write_json(self.path / "status.json", self.raw_status() | facts)

    def status(self) -> dict[str, Any]:
        """As written, but a run whose process is gone without a word is "lost"."""
        status = self.raw_status()
        if status.get("state") in ("starting", "running") and not alive(status):
            return status | {"state": "lost", "exit_code": 1}
        return status


def alive(status: dict[str, Any]) -> bool:
    """Whether the run's process lives; the start time tells it from a reused pid."""
    pid, born = status.get("pid"), status.get("process_started")
    if pid is None:  # between making the folder and starting the process
        return time.time() - float(status.get("created", 0)) < 30
    try:
        process = psutil.Process(pid)
        same = born is None or abs(process.create_time() - born) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find(run_id: str) -> RunFolder:
    """A run by its id, an unambiguous part of it, or "last".

    Raises:
        NotFoundError: none, or several; names them.
    """
    known = all_folders()
    if run_id == "last" and known:
        return known[-1]
    exact = [f for f in known if f.run_id == run_id] or [
        f for f in known if run_id in f.run_id
    ]
    if len(exact) == 1:
        return exact[0]
    names = [f.run_id for f in known]
    if exact:
        raise NotFoundError(
            f"{run_id!r} fits {len(exact)} runs: {', '.join(f.run_id for f in exact[:5])}."
        )
    hint = nearest(run_id, names) or " There are no runs yet."
    raise NotFoundError(f"There is no run {run_id!r} in {runs_folder()}.{hint}")


def all_folders() -> list[RunFolder]:
    """Oldest first."""
    folder = runs_folder()
    found = [RunFolder(p.parent) for p in folder.glob("*/experiment.json")]
    return sorted(found, key=lambda f: (f.raw_status().get("created", 0), f.run_id))


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return data
