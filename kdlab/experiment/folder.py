"""A run folder: its files, and the run's status.

runs/<run_id>/
    spec.yaml      the resolved spec; experiment.json its name and hash, and the format
    events.jsonl   all events, append-only: the record that decides
    status.json    state, result
    lock           held by the run's process, and has its pid
    knobs.json     tunable numbers of each member
    control.jsonl  changes that users requested during the run (run/handle/changes.py)
    run.log        output of the process
    members/<source>/seed<n>/   checkpoints, student.safetensors, result.json, model card
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import yaml

from kdlab.codec import MessageError, from_builtins, to_builtins
from kdlab.config.folders import nearest, wrong_path
from kdlab.config.home import never_anew, read_object, read_plain, runs_folder, write_json
from kdlab.config.seal import hash_of
from kdlab.errors import BadInput, KdlabError, NotFoundError
from kdlab.events.event import OtherEvent
from kdlab.events.log import select
from kdlab.events.runs import RunStarted
from kdlab.tracking import PENDING

FORMAT = 2  # of the folder with its spec, events and checkpoints; kdlab 0.1 wrote format 1
UNDER_WAY = ("starting", "running")
ENDED = ("finished", "failed", "stopped", "lost", "unreadable")
PATIENCE_S = 5.0  # until a killed process has released its lock
_NEW_S = 30.0  # until a process holds the lock of a new folder
_LAST_TIME = 2.0**36  # seconds since 1970; later times overflow calendars


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Contents of `status.json` of a run or a sweep; times in seconds since 1970.

    Attributes:
        state: one of UNDER_WAY or ENDED; `pool` for a folder that holds only a pool.
            `unreadable` means that the file is damaged and that the log does not have the end.
        begin, ended: times of its work.
        exit_code, error, result: set once it has ended.
        tracking: why MLflow was not written; None where it was, or was not requested; PENDING
            while it is being written.
    """

    state: str | None = None
    created: float = 0.0  # last start or resume
    begin: float | None = None
    ended: float | None = None
    seconds: float | None = None  # sum over its ended processes
    exit_code: int | None = None
    error: str | None = None
    result: Mapping[str, object] | None = None
    tracking: str | None = None

    def __post_init__(self) -> None:
        times = self.created, self.begin, self.ended, self.seconds
        if not all(time is None or 0 <= time < _LAST_TIME for time in times):
            raise ValueError("it has an invalid time")
        if self.state is not None and self.state not in (*UNDER_WAY, *ENDED, "pool"):
            raise ValueError("it has an unknown state")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """Origin of a run or a sweep: contents of `experiment.json`."""

    format: int = 1  # version of the folder's format
    experiment: str | None = None  # name of the config
    spec_hash: str | None = None  # hash of the spec
    cwd: str | None = None  # folder of the start


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
    def tunables(self) -> Path:
        return self.path / "knobs.json"

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def resume_command(self) -> str:
        return f"kdlab resume {self.run_id}"

    @property
    def since(self) -> float:
        """Time of the last start or resume, in seconds since 1970."""
        return self.raw_status().created

    def member(self, name: str) -> Path:
        return self.path / "members" / name

    def of_members(self, name: str) -> list[Path]:
        """Return the members' files of this name, sorted.

        Safe during a run, which also deletes folders: `rglob` fails on a folder that disappears.
        """
        folders = os.walk(self.path / "members")
        return sorted(Path(folder, name) for folder, _, files in folders if name in files)

    def origin(self) -> RunOrigin:
        """Read `experiment.json`.

        Raises:
            BadInput: the file is damaged.
        """
        with self._reading("experiment.json") as path:
            return from_builtins(RunOrigin, _read(path))

    @contextmanager
    def _reading(self, file: str) -> Iterator[Path]:
        try:
            yield self.path / file
        except (OSError, ValueError, RecursionError, MessageError, yaml.YAMLError) as error:
            raise BadInput(
                f"Run {self.run_id} cannot be read: {file} in {self.path} is damaged ({error}). "
                "Its log, students and checkpoints are intact, and so are other runs. "
                "Restore the file, or start a new run."
            ) from error

    def write_origin(self, experiment: str, spec_hash: str) -> None:
        origin = RunOrigin(
            format=FORMAT, experiment=experiment, spec_hash=spec_hash, cwd=os.getcwd()
        )
        write_json(self.path / "experiment.json", to_builtins(origin))

    def components(self) -> dict[str, dict[str, str]]:
        """Read the notebook components of the run: source and hash of each, by name.

        Raises:
            BadInput: the file is damaged.
        """
        with self._reading("components.json") as path:
            return from_builtins(dict[str, dict[str, str]], _read(path))

    def resolved(self, file: str = "spec.yaml") -> dict[str, Any]:
        """Read the resolved spec.

        Raises:
            BadInput: the file is damaged.
        """
        with self._reading(file) as path:
            tree = yaml.safe_load(path.read_text(encoding="utf-8"))
            if not isinstance(tree, dict):
                raise ValueError("it has no spec")
            return tree

    def check_format(self) -> None:
        """Check that this version of kdlab can continue the run.

        Raises:
            BadInput: a version with another format wrote it.
        """
        origin = self.origin()
        written = origin.format
        if written == FORMAT:
            return
        started = next(select(self.events, RunStarted), None)
        versions = {} if started is None else started.versions
        writer = versions.get("kdlab", "0.1" if written == 1 else "unknown")
        raise BadInput(
            f"Run {self.run_id} has format {written}, written by kdlab {writer}; this is "
            f"{version('kdlab')}, which reads format {FORMAT}. Its result, student and events "
            f"are still readable; to continue it, use the kdlab that wrote it, or run "
            f"{origin.experiment or 'the experiment'} again."
        )

    def raw_status(self) -> RunStatus:
        """Return the status as written; from the log where the file is damaged."""
        try:
            status = from_builtins(RunStatus, self._written_status())
            if status.state == "finished" and status.result is None:
                raise ValueError("it is finished and has no result")
        except (OSError, ValueError, MessageError) as error:
            return self._status_of_log(error)
        return status

    def _written_status(self) -> dict[str, object]:
        """Read the fields that `write_status` wrote; empty where there is no file.

        Raises:
            OSError, ValueError, MessageError: the file cannot be read, or is damaged.
        """
        body = _read(self.path / "status.json")
        if body and body.pop("seal", None) != hash_of(body):
            raise ValueError("it differs from its seal")
        return body

    def _status_of_log(self, error: Exception) -> RunStatus:
        created = self.path.stat().st_mtime
        if self.alive():
            return RunStatus(state="running", created=created)
        why = f"status.json in {self.path} is damaged: {error}"
        try:
            return self._status_of_events(created)
        except (ValueError, TypeError, KeyError, OSError, KdlabError):
            return RunStatus(state="unreadable", created=created, exit_code=1, error=why)

    def _status_of_events(self, created: float) -> RunStatus:
        """Return the status by the log's last event, for a run whose process has ended."""
        *_, last = select(
            self.events, "run_started", "sweep_started", "run_done", "sweep_done"
        )
        if isinstance(last, OtherEvent) and last.why:
            raise ValueError(last.why)
        facts = last.facts()
        if facts["event"].endswith("started"):
            return RunStatus(state="lost", created=created, exit_code=1)
        state, result, error = str(facts["state"]), facts.get("result"), facts.get("error")
        return RunStatus(
            state=state,
            created=created,
            ended=last.time,
            exit_code={"finished": 0, "stopped": 130}.get(state, 1),
            result=result if isinstance(result, Mapping) else None,
            error=None if error is None else str(error),
        )

    def write_status(self, **facts: object) -> None:
        """Write fields of `RunStatus`; the others stay."""
        path = self.path / "status.json"
        try:
            before = self._written_status()
        except (OSError, ValueError, MessageError):  # the file is replaced
            before = {"created": time.time()}
        body = json.loads(json.dumps(before | facts, default=str))  # as it will be read
        write_json(path, body | {"seal": hash_of(body)})

    def status(self) -> RunStatus:
        """Return the status; "lost" for a run whose process ended without writing one.

        A run that still writes to MLflow counts as running, so that its end includes the result.
        """
        status = self.raw_status()
        pending = status.tracking == PENDING and status.state in ENDED
        if not pending and status.state not in UNDER_WAY:
            return status
        if self.alive():
            return replace(status, state="running", tracking=None) if pending else status
        last = self.raw_status()  # the process may have written it before it ended
        if (last.state, last.tracking) != (status.state, status.tracking):
            return self.status()
        young = 0 <= time.time() - status.created < _NEW_S
        if pending or (young and not (self.path / "lock").exists()):
            return status
        return replace(status, state="lost", exit_code=1)

    def alive(self) -> bool:
        """Return whether a process holds the run's lock."""
        with suppress(OSError), _opened(self.path / "lock", os.O_RDONLY) as lock:
            return not taken(lock, fcntl.LOCK_SH)
        return False

    def process(self) -> psutil.Process | None:
        """Return the process that holds the lock and gets signals; None if unknown here."""
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            if self.alive():
                process = psutil.Process(int(read_plain(self.path / "lock", most=20)))
                return None if process.status() == psutil.STATUS_ZOMBIE else process
        return None

    def family(self) -> list[psutil.Process]:
        """Return the run's process and its live descendants; empty where it has none."""
        first = self.process()
        with suppress(psutil.Error):
            return [] if first is None else [first, *first.children(recursive=True)]
        return []

    @contextmanager
    def held(self) -> Iterator[int]:
        """Hold the run's lock; yields its descriptor, which child processes may inherit.

        Raises:
            BadInput: another process has it, or the file is no lock. It waits PATIENCE_S first:
                `alive` takes the lock briefly, a killed process until its last thread ends.
        """
        deadline = time.monotonic() + PATIENCE_S
        with ExitStack() as stack:
            with self._reading("lock") as path:
                lock = stack.enter_context(_opened(path, os.O_RDWR | os.O_CREAT))
            while not taken(lock, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    name = os.path.relpath(self.path, runs_folder())
                    raise BadInput(
                        f"{name} is already running; watch it: kdlab attach {name}"
                    )
                time.sleep(0.1)  # between tries
            os.ftruncate(lock, 0)  # the holder writes its pid
            never_anew.add(self.path)
            yield lock


@contextmanager
def _opened(lock: Path, flags: int) -> Iterator[int]:
    """Open a lock in an untrusted folder: neither a link to a file nor a pipe that blocks."""
    descriptor = os.open(lock, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no plain file")
        yield descriptor
    finally:
        os.close(descriptor)  # not LOCK_UN: a child process may have inherited the lock


def taken(lock: int, kind: int) -> bool:
    """Try to lock a descriptor, LOCK_SH or LOCK_EX of flock; return whether it has the lock."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find(run_id: str) -> RunFolder:
    """Find a run by its id, an unambiguous part of it, its folder, or "last".

    Raises:
        NotFoundError: none or several match; lists them.
    """
    runs = all_folders()
    if run_id and not any(run_id in ("last", f.run_id) for f in runs):  # "" is part of all
        path = os.path.abspath(run_id)
        matches = [f for f in runs if run_id in f.run_id or str(f.path) == path]
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(f.run_id for f in matches[:5])
            raise NotFoundError(f"{run_id!r} matches {len(matches)} runs: {names}.")
    return named(run_id, runs, "run", runs_folder())


def sweeps_folder() -> Path:
    return runs_folder() / "sweeps"


def find_sweep(study: str) -> RunFolder:
    """Find a sweep by name or "last"; NotFoundError, with the nearest, where there is none."""
    folders = (RunFolder(path.parent) for path in sweeps_folder().glob("*/sweep.yaml"))
    sweeps = sorted(folders, key=lambda f: f.since)
    return named(study, sweeps, "sweep", sweeps_folder())


def named(name: str, folders: Sequence[RunFolder], noun: str, where: Path) -> RunFolder:
    """Find a folder by name or "last".

    Raises:
        NotFoundError: there is none; lists the nearest.
    """
    if name == "last" and folders:
        return folders[-1]
    for folder in folders:
        if folder.run_id == name:
            return folder
    hint = nearest(name, [f.run_id for f in folders]) or f" There are no {noun}s yet."
    message = f"There is no {noun} {name!r} in {where}.{hint}"
    raise NotFoundError(wrong_path(name, noun, hint) or message)


def all_folders() -> list[RunFolder]:
    """Return all run folders, oldest first."""
    folder = runs_folder()
    runs = [RunFolder(p.parent) for p in folder.glob("*/experiment.json")]
    return sorted(runs, key=lambda f: (f.since, f.run_id))


def _read(path: Path) -> dict[str, object]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
