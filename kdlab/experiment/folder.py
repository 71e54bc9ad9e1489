"""A run folder: what lies where, and the run's status in it.

runs/<run_id>/
    spec.yaml      the resolved spec; experiment.json its name and hash, and the format
    events.jsonl   everything that happened, append-only: the truth
    status.json    state, result
    lock           held by its process while that lives, and who that is
    knobs.json     numbers that can be set while it goes on, member by member
    control.jsonl  what somebody asked of it while it went on (run/handle/changes.py)
    run.log        what the process printed
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
PATIENCE_S = 5.0  # for a process that was killed to let go of its lock
_NEW_S = 30.0  # until a process has come to a new folder
_LAST_TIME = 2.0**36  # seconds since 1970, beyond which no calendar goes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What `status.json` says of a run or a sweep; times in seconds since 1970.

    Attributes:
        state: one of UNDER_WAY or ENDED; or `pool`, of a folder that holds no more than a
            pool. `unreadable` says that the file is damaged, and that the log does not tell
            how it ended.
        begin, ended: of its work.
        exit_code, error, result: of what has ended.
        tracking: why MLflow was not written; None where it was, or was not asked for; PENDING
            while it is waited for.
    """

    state: str | None = None
    created: float = 0.0  # when it was started or resumed last
    begin: float | None = None
    ended: float | None = None
    seconds: float | None = None  # that all its processes took which have ended
    exit_code: int | None = None
    error: str | None = None
    result: Mapping[str, object] | None = None
    tracking: str | None = None

    def __post_init__(self) -> None:
        times = self.created, self.begin, self.ended, self.seconds
        if not all(one is None or 0 <= one < _LAST_TIME for one in times):
            raise ValueError("a time in it is none")
        if self.state is not None and self.state not in (*UNDER_WAY, *ENDED, "pool"):
            raise ValueError("its state is none that a run can have")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    """What a run or a sweep was made of: `experiment.json`."""

    format: int = 1  # of the folder
    experiment: str | None = None  # name of its config
    spec_hash: str | None = None  # of its spec
    cwd: str | None = None  # where it was started


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
        """When it was started or resumed last; seconds since 1970."""
        return self.raw_status().created

    def member(self, name: str) -> Path:
        return self.path / "members" / name

    def of_members(self, name: str) -> list[Path]:
        """The files of this name that its trainings have written, sorted.

        Safe beside a run at work, which also deletes folders: `rglob` fails on one that goes.
        """
        folders = os.walk(self.path / "members")
        return sorted(Path(folder, name) for folder, _, files in folders if name in files)

    def origin(self) -> RunOrigin:
        """What it was made of.

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
                "Its log, students and checkpoints are as they were; other runs are not "
                "concerned. Put the file back, or start a new run."
            ) from error

    def write_origin(self, experiment: str, spec_hash: str) -> None:
        origin = RunOrigin(
            format=FORMAT, experiment=experiment, spec_hash=spec_hash, cwd=os.getcwd()
        )
        write_json(self.path / "experiment.json", to_builtins(origin))

    def components(self) -> dict[str, dict[str, str]]:
        """Components of notebook cells that it needs: source and hash of each, by name.

        Raises:
            BadInput: the file is damaged.
        """
        with self._reading("components.json") as path:
            return from_builtins(dict[str, dict[str, str]], _read(path))

    def resolved(self) -> dict[str, Any]:
        """The resolved spec, as it was written.

        Raises:
            BadInput: the file is damaged.
        """
        with self._reading("spec.yaml") as path:
            tree = yaml.safe_load(path.read_text(encoding="utf-8"))
            if not isinstance(tree, dict):
                raise ValueError("it holds no spec")
            return tree

    def check_format(self) -> None:
        """Whether this version of kdlab can go on with what lies here.

        Raises:
            BadInput: another version wrote it.
        """
        origin = self.origin()
        found = origin.format
        if found == FORMAT:
            return
        begun = next(select(self.events, RunStarted), None)
        known = {} if begun is None else begun.versions
        writer = known.get("kdlab", "0.1" if found == 1 else "unknown")
        raise BadInput(
            f"Run {self.run_id} has format {found}, written by kdlab {writer}; this is "
            f"{version('kdlab')}, which reads format {FORMAT}. Its result, student and events "
            f"can still be looked at; to train on, use the kdlab that wrote it, or run "
            f"{origin.experiment or 'the experiment'} again."
        )

    def raw_status(self) -> RunStatus:
        """As written; where the file is damaged, as the log tells."""
        try:
            status = from_builtins(RunStatus, self._written_status())
            if status.state == "finished" and status.result is None:
                raise ValueError("it is finished, and has no result")
        except (OSError, ValueError, MessageError) as error:
            return self._status_of_log(error)
        return status

    def _written_status(self) -> dict[str, object]:
        """What `write_status` has put there; empty where nothing was.

        Raises:
            OSError, ValueError, MessageError: the file cannot be read, or is damaged.
        """
        body = _read(self.path / "status.json")
        if body and body.pop("seal", None) != hash_of(body):
            raise ValueError("it is not what was written")
        return body

    def _status_of_log(self, error: Exception) -> RunStatus:
        made = self.path.stat().st_mtime
        if self.alive():
            return RunStatus(state="running", created=made)
        why = f"status.json in {self.path} is damaged: {error}"
        try:
            return self._status_of_events(made)
        except (ValueError, TypeError, KeyError, OSError, KdlabError):
            return RunStatus(state="unreadable", created=made, exit_code=1, error=why)

    def _status_of_events(self, made: float) -> RunStatus:
        """As the log's last word has it, of a run whose process is gone."""
        *_, last = select(
            self.events, "run_started", "sweep_started", "run_done", "sweep_done"
        )
        if isinstance(last, OtherEvent) and last.why:
            raise ValueError(last.why)
        facts = last.facts()
        if facts["event"].endswith("started"):
            return RunStatus(state="lost", created=made, exit_code=1)
        state, result, said = str(facts["state"]), facts.get("result"), facts.get("error")
        return RunStatus(
            state=state,
            created=made,
            ended=last.time,
            exit_code={"finished": 0, "stopped": 130}.get(state, 1),
            result=result if isinstance(result, Mapping) else None,
            error=None if said is None else str(said),
        )

    def write_status(self, **facts: object) -> None:
        """Fields of `RunStatus`; what is not named stays."""
        path = self.path / "status.json"
        try:
            before = self._written_status()
        except (OSError, ValueError, MessageError):  # what is known from here on is right
            before = {"created": time.time()}
        body = json.loads(json.dumps(before | facts, default=str))  # as it will be read
        write_json(path, body | {"seal": hash_of(body)})

    def status(self) -> RunStatus:
        """As written, but a run whose process is gone without a word is "lost".

        One that waits for MLflow is running: whoever waits for its end sees what came of that.
        """
        status = self.raw_status()
        pending = status.tracking == PENDING and status.state in ENDED
        if not pending and status.state not in UNDER_WAY:
            return status
        if self.alive():
            return replace(status, state="running", tracking=None) if pending else status
        last = self.raw_status()  # before its process went it may have said more
        if (last.state, last.tracking) != (status.state, status.tracking):
            return self.status()
        young = 0 <= time.time() - status.created < _NEW_S
        if pending or (young and not (self.path / "lock").exists()):
            return status
        return replace(status, state="lost", exit_code=1)

    def alive(self) -> bool:
        """Whether a process holds it."""
        with suppress(OSError), _opened(self.path / "lock", os.O_RDONLY) as lock:
            return not taken(lock, fcntl.LOCK_SH)
        return False

    def process(self) -> psutil.Process | None:
        """Who holds it, and gets signals that are meant for it; None where nobody says so here."""
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            if self.alive():
                process = psutil.Process(int(read_plain(self.path / "lock", most=20)))
                return None if process.status() == psutil.STATUS_ZOMBIE else process
        return None

    def family(self) -> list[psutil.Process]:
        """Its process first, and all that this has started, of those that still are."""
        first = self.process()
        with suppress(psutil.Error):
            return [] if first is None else [first, *first.children(recursive=True)]
        return []

    @contextmanager
    def held(self) -> Iterator[int]:
        """By one process at a time, and by those to which it hands this descriptor.

        Raises:
            BadInput: another one has it, or it is none. Not at once: who asks whether it is held
                has the lock for that moment, and a killed process until its last thread has ended.
        """
        deadline = time.monotonic() + PATIENCE_S
        with ExitStack() as stack:
            with self._reading("lock") as path:
                lock = stack.enter_context(_opened(path, os.O_RDWR | os.O_CREAT))
            while not taken(lock, fcntl.LOCK_EX):
                if time.monotonic() >= deadline:
                    name = os.path.relpath(self.path, runs_folder())
                    raise BadInput(
                        f"{name} is going already; watch it: kdlab attach {name}"
                    )
                time.sleep(0.1)  # between tries
            os.ftruncate(lock, 0)  # who holds it from here on says so
            never_anew.add(self.path)
            yield lock


@contextmanager
def _opened(lock: Path, flags: int) -> Iterator[int]:
    """A folder may be somebody else's: its lock no link to a file, and no pipe to wait for."""
    descriptor = os.open(lock, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode=0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no plain file")
        yield descriptor
    finally:
        os.close(descriptor)  # not LOCK_UN: another process may have been given it


def taken(lock: int, kind: int) -> bool:
    """Whether a descriptor has the lock now, shared or alone: LOCK_SH or LOCK_EX of flock."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find(run_id: str) -> RunFolder:
    """A run by its id, an unambiguous part of it, its folder, or "last".

    Raises:
        NotFoundError: none, or several; names them.
    """
    known = all_folders()
    if not any(run_id in ("last", f.run_id) for f in known):
        path = os.path.abspath(run_id)
        fitting = [f for f in known if run_id in f.run_id or str(f.path) == path]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = ", ".join(f.run_id for f in fitting[:5])
            raise NotFoundError(f"{run_id!r} fits {len(fitting)} runs: {names}.")
    return named(run_id, known, "run", runs_folder())


def sweeps_folder() -> Path:
    return runs_folder() / "sweeps"


def find_sweep(study: str) -> RunFolder:
    """A sweep by its name, or the "last"; NotFoundError where there is none, with the nearest."""
    every = (RunFolder(path.parent) for path in sweeps_folder().glob("*/sweep.yaml"))
    known = sorted(every, key=lambda f: f.since)
    return named(study, known, "sweep", sweeps_folder())


def named(name: str, known: Sequence[RunFolder], what: str, where: Path) -> RunFolder:
    """The folder of this name, or the "last" of them.

    Raises:
        NotFoundError: there is none; names the nearest.
    """
    if name == "last" and known:
        return known[-1]
    for folder in known:
        if folder.run_id == name:
            return folder
    hint = nearest(name, [f.run_id for f in known]) or f" There are no {what}s yet."
    words = f"There is no {what} {name!r} in {where}.{hint}"
    raise NotFoundError(wrong_path(name, what, hint) or words)


def all_folders() -> list[RunFolder]:
    """Oldest first."""
    folder = runs_folder()
    found = [RunFolder(p.parent) for p in folder.glob("*/experiment.json")]
    return sorted(found, key=lambda f: (f.since, f.run_id))


def _read(path: Path) -> dict[str, object]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
