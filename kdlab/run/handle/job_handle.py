"""The handle of a run or sweep, whose process is separate and outlives this one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import psutil

from kdlab.config import credentials
from kdlab.errors import BadInput, NotFoundError, RunFailed, RunStopped
from kdlab.events.event import Event
from kdlab.events.log import EventReader
from kdlab.experiment.folder import PATIENCE_S, UNDER_WAY, RunFolder, RunStatus
from kdlab.run.handle import marks

_LAST_DRAW_S = 10.0  # for live views to draw the end
_TICK_S = 0.1
_Watcher = Callable[[Event], None]
Components = Mapping[str, Mapping[str, str]]  # of notebook cells: source and hash of each

# Idle threads of PyTorch sleep between operations: by default they spin, and on a busy machine
# training was slower by ten times for it.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
_CHILD = (sys.executable, "-m", "kdlab.run.process.child")


def spawn(run: RunFolder, components: Components, lock: int, *module: str) -> None:
    """Start the process of a run in a new session: Ctrl-C in this terminal does not reach it.

    The process inherits the lock, so that the folder is held at every moment. `module` names
    the module whose `main` it calls instead of training a run.
    """
    hashes = {name: entry["sha256"] for name, entry in components.items()}
    everything = _WAITING | os.environ | {"KDLAB_COMPONENTS": json.dumps(hashes)}
    # Blocked signals wait until the process handles them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with run.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            process = subprocess.Popen(
                [*_CHILD, *module, str(lock), str(run.path)],
                pass_fds=[lock],
                stdin=nothing,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=everything,
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _children.append(process)
    if os.environ.get(credentials.WEBHOOK) or credentials.secrets_file().exists():
        alerts = [sys.executable, "-m", "kdlab.run.handle.alerts", str(run.path)]
        no = subprocess.DEVNULL
        # In a new session: it survives to report the end of the run's process group.
        with contextlib.suppress(OSError):
            process = subprocess.Popen(
                alerts, stdin=no, stdout=no, stderr=no, start_new_session=True
            )
            _children.append(process)


def _fills(process: psutil.Process, folder: Path) -> bool:
    """Return whether the process was started for `folder`, whose lock file may be forged."""
    words = process.cmdline()
    if not words:
        raise psutil.NoSuchProcess(process.pid)  # a zombie
    text = " ".join(words).rstrip()
    try:  # the same folder may have another name by now
        same = os.path.samefile(words[-1], folder)
    except OSError:
        same = False
    return (same or text.endswith(f" {folder}")) and " kdlab." in text


_children: list["subprocess.Popen[bytes]"] = []  # polled, so that none stays a zombie
# Notebook views of "run", "sweep" and "experiment"; kdlab/session.py fills it.
viewers: dict[str, Callable[..., object]] = {}


def in_a_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def in_marimo() -> bool:
    """Return whether this process runs the cells of a marimo notebook."""
    if "marimo" not in sys.modules:
        return False
    import marimo

    return bool(marimo.running_in_notebook())


@runtime_checkable
class _Settles(Protocol):
    def wait_for_snapshot(self, timeout_s: float) -> None: ...


class JobHandle:
    """A run or sweep by its folder: status, events, and the lock that its process holds."""

    tick_s = _TICK_S  # between polls

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self.path: Path = folder.path
        self._shown: list[object] = []  # live views of this handle

    @property
    def name(self) -> str:
        """The name that `kdlab attach` and `kdlab stop` take."""
        return self.id

    @property
    def status(self) -> RunStatus:
        for child in _children:
            child.poll()  # reaps it once it has ended
        return self.folder.status()

    @property
    def state(self) -> str:
        """The state: starting, running, finished, failed, stopped or lost (killed from outside)."""
        return str(self.status.state)

    def _result_or_raise(self) -> Mapping[str, object]:
        """Return the result; RunFailed, RunStopped or NotFoundError says why there is none."""
        status = self.status
        if status.state == "finished":
            assert status.result is not None
            return status.result
        words = self._why_no_result(status)
        if status.state == "stopped":
            raise RunStopped(words)
        if status.state == "unreadable":
            raise RunFailed(f"{self.name} cannot be read: {status.error}")
        if status.state in ("failed", "lost"):
            failure = RunFailed(words)
            failure.exit_code = status.exit_code or 1  # 2: its input was wrong
            raise failure
        raise NotFoundError(words)

    def _why_no_result(self, status: RunStatus) -> str:
        """The message where there is no result, with the command that continues."""
        raise NotImplementedError

    def events(self, follow: bool = False) -> Iterator[Event]:
        """Yield the events so far, in order; with `follow`, until the end."""
        for news in self._news():
            yield from news
            if not follow:
                return

    def _news(self, timeout_s: float | None = None) -> Iterator[list[Event]]:
        """Yield the new events at each poll, until the end."""
        begin, read = time.monotonic(), EventReader(self.folder.events)
        while True:
            ended = (
                self.status.state not in UNDER_WAY
            )  # before the read, so that no event is missed
            yield read()
            if ended:
                return
            if timeout_s is not None and time.monotonic() - begin > timeout_s:
                raise TimeoutError(f"{self.id} has not ended after {timeout_s:g} s")
            time.sleep(self.tick_s)

    def wait(
        self,
        watch: _Watcher | None = None,
        timeout_s: float | None = None,
        since: float = 0.0,
    ) -> Self:
        """Wait for the end.

        Args:
            watch: called with every event, or those after `since`. None prints lines in a
                terminal, and in a notebook that does not show the run live.
            timeout_s: seconds; None waits as long as it takes.
            since: time of the oldest event passed to `watch`.

        Raises:
            TimeoutError: no end after `timeout_s`; the process continues.
        """
        if watch is None and not self._shown and (in_a_notebook() or sys.stderr.isatty()):
            with self.lines() as lines:
                return self.wait(lines, timeout_s, since)
        for news in self._news(timeout_s):
            for event in news:
                if watch is not None and event.time >= since:
                    watch(event)
        for view in self._shown:  # a saved notebook keeps their last pictures
            if isinstance(view, _Settles):
                view.wait_for_snapshot(_LAST_DRAW_S)
        return self

    def lines(self) -> AbstractContextManager[_Watcher]:
        """A context manager whose value prints events as lines."""
        raise NotImplementedError

    def _shown_live(self, view: Callable[[], object]) -> object:
        """Return the view in a notebook; elsewhere print lines to the end, and return `self`."""
        if in_a_notebook() or in_marimo():
            shown = view()
            self._shown.append(shown)
            return shown
        with contextlib.suppress(KeyboardInterrupt), self.lines() as lines:
            self.wait(lines)
        return self

    @property
    def marks(self) -> marks.Marks:
        """Tags, note, and whether it is archived."""
        return marks.marks_of(self.folder)

    def tag(self, *words: str, drop: Sequence[str] = ()) -> None:
        """Add tags and `drop` others; `kdlab runs` shows them."""
        every = dict.fromkeys((*self.marks.tags, *map(str, words)))
        marks.mark(self.folder, tags=tuple(tag for tag in every if tag not in drop))

    def note(self, text: str) -> None:
        """Replace the note."""
        marks.mark(self.folder, note=text)

    def archive(self, archived: bool = True) -> None:
        """Hide it from `kdlab runs`, or show it again; nothing is removed."""
        marks.mark(self.folder, archived=archived)

    def delete(self, sure: Callable[[str], bool] = lambda words: True) -> str:
        """Delete the folder for good if `sure` of the losses; return what was deleted, in words.

        Raises:
            BadInput: it is under way, or cannot be removed.
        """
        return marks.delete(self.folder, sure)

    def stop(self) -> None:
        """Stop after this step and save; a second call stops at once."""
        self._signal(os.kill, signal.SIGINT)

    def kill(self) -> None:
        """Kill its whole process group; its state is then stopped, and its checkpoints stay."""
        deadline = time.monotonic() + PATIENCE_S
        if self._signal(os.killpg, signal.SIGKILL):  # it leads a process group of its own
            while self.folder.alive() and time.monotonic() < deadline:
                time.sleep(_TICK_S)
            self._write_stopped()

    def _write_stopped(self) -> None:
        """Write the status that the killed process could not, unless it was resumed meanwhile."""
        stopped = {"state": "stopped", "ended": time.time(), "exit_code": 130}
        with contextlib.suppress(BadInput):
            if self.folder.alive():
                return
            with self.folder.held():
                if self.folder.raw_status().state in UNDER_WAY:
                    self.folder.write_status(**stopped)

    def _signal(self, send: Callable[[int, int], None], number: int) -> bool:
        """Send a signal once the process has written its id; return whether it was sent."""
        deadline = time.monotonic() + PATIENCE_S
        while self.status.state in UNDER_WAY and self.folder.alive():
            process, late = self.folder.process(), time.monotonic() > deadline
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it ends
                if process is not None and not late and _fills(process, self.path):
                    send(process.pid, number)
                    return True
                if process is not None or late:
                    raise BadInput(
                        f"{self.path}/lock names {process or 'nobody here'}, which is none of "
                        "this folder; it gets no signal. If it runs elsewhere, stop it there."
                    )
            time.sleep(_TICK_S)
        return False
