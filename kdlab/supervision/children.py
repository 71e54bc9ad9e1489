"""Child processes that cannot outlive their parent.

A child reads its configuration as one line of JSON from standard input and keeps that pipe
as a lifeline: when it closes, because the parent closed it or died, the child ends. A
SIGKILL of the parent leaves no child behind.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from kdlab.codec import from_json, to_builtins
from kdlab.errors import ClusterError
from kdlab.supervision import lifeline
from kdlab.supervision.heartbeat import Heartbeat, HeartbeatFile

T = TypeVar("T")

_NICENESS = 5  # added to the niceness of this process


class Child:
    """A process `python -m MODULE` with a log file and a lifeline.

    Its main reads the dataclass `config` with `configured`; its output is appended to `log`.
    `pulse` is its heartbeat file, if it has one, and then a field of `config`. The child shares
    the open files `fds` under the same numbers. `environment` is added to this process's own;
    `within` are words before the command, such as those that enter a network namespace.
    Raises ClusterError where the child ends before it is configured.
    """

    machine = "here"

    def __init__(
        self,
        module: str,
        config: object,
        log: Path,
        pulse: Path | None = None,
        *,
        fds: Sequence[int] = (),
        environment: dict[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.module, self.log = module, log
        self._pulse = HeartbeatFile(pulse) if pulse else None
        variables = os.environ | (environment or {})
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "kdlab.supervision", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                pass_fds=tuple(fds),
                env=variables,
            )
        self._received = b""
        try:
            self._write_line(to_builtins(config) | ({"pulse": str(pulse)} if pulse else {}))
        except BrokenPipeError as error:
            why = self.exit_report("ended before it was configured")
            raise ClusterError(why) from error

    def _write_line(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, **order: object) -> bool:
        """Send one line of JSON; False when the child has ended."""
        try:
            self._write_line(order)
        except (BrokenPipeError, ValueError):  # ValueError: this side closed the pipe
            return False
        return True

    def messages(self) -> list[dict[str, object]]:
        """Messages since the last call; never waits."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return []
        pipe = self.process.stdout.fileno()
        while select.select([pipe], [], [], 0)[0] and (chunk := os.read(pipe, 1 << 16)):
            self._received += chunk
        lines, _, self._received = self._received.rpartition(b"\n")
        return [from_json(dict[str, object], line) for line in lines.split(b"\n") if line]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def alive(self) -> bool:
        return self.exit_code is None

    def is_stopped(self) -> bool:
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    def sign(self) -> Heartbeat:
        assert self._pulse is not None
        return self._pulse.read()

    def kill(self) -> None:
        self.process.kill()

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the line of JSON that a child prints when it is up.

        Raises:
            ClusterError: it ended first, or printed nothing in time; quotes its log.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            alive = self.alive()  # before reading, so that its last messages are read
            if messages := self.messages():
                return messages[0]
            if not alive:
                raise ClusterError(self.exit_report("ended while starting"))
            select.select([self.process.stdout], [], [], 0.1)
        raise ClusterError(self.exit_report(f"did not come up within {timeout_s:g} s"))

    def exit_report(self, what: str) -> str:
        code = self.exit_code
        killed = f"{signal.strsignal(-code)}, " if code is not None and code < 0 else ""
        ended = "" if code is None else f" ({killed}exit code {code})"
        return f"{self.module} {what}{ended}. End of {self.log}:\n{tail(self.log)}"

    def stop(self, timeout_s: float = 5.0) -> None:
        """Close the lifeline, wait, and kill a child that does not end. May be called twice."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it has ended already
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RankChild(Protocol):
    """A child with heartbeats, on this machine (`Child`) or beside a worker of a Dask cluster."""

    @property
    def pid(self) -> int: ...

    @property
    def machine(self) -> str:
        """Name of its machine: equal for ranks that share GPUs and memory."""

    @property
    def exit_code(self) -> int | None: ...

    def messages(self) -> list[dict[str, object]]: ...

    def send(self, **order: object) -> bool: ...

    def alive(self) -> bool: ...

    def sign(self) -> Heartbeat:
        """Its newest heartbeat, on the clock of the caller's machine."""

    def is_stopped(self) -> bool:
        """True where it is stopped (SIGSTOP)."""

    def kill(self) -> None: ...

    def exit_report(self, what: str) -> str: ...

    def stop(self, timeout_s: float = 5.0) -> None: ...


StartChild = Callable[..., Child]  # called like `Child`; tests hand in a scripted one


def tail(log: Path, lines: int = 15) -> str:
    if not log.exists():
        return "  (no log)"
    last = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  {line}" for line in last) or "  (empty)"


_parent = 1  # the pipe that `announce` writes to; `configured` moves it off standard output


def lower_priority() -> None:
    """Raise the niceness of a process that serves a trainer on the same machine.

    Otherwise each message that arrives here may push the trainer off its core. The cost was
    within the noise of the machine it was measured on (two cores, +-0.05). Nothing starves:
    a trainer without soft labels sleeps.
    """
    os.nice(_NICENESS)


def configured(
    kind: type[T], on_order: Callable[[dict[str, object]], None] | None = None
) -> T:
    """Read a child's configuration; from here on the child ends with its parent.

    `on_order` is called, in a separate thread, with each order that the parent sends later.

    Raises:
        MessageError: the configuration is not of this kind.
    """
    # Unbuffered: a thread that waits in a buffered read holds a lock that the interpreter
    # needs at exit.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("this module needs a configuration, which only kdlab sends")
        line += byte
    config = from_json(kind, line)
    # All prints go to the log: nobody reads the pipe after `announce`.
    global _parent  # noqa: PLW0603  # the one pipe of this process
    _parent = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(
        target=_follow_parent, args=(on_order,), name="lifeline", daemon=True
    ).start()
    lifeline.followed.set()
    return config


def _follow_parent(on_order: Callable[[dict[str, object]], None] | None) -> None:
    rest = b""
    while chunk := os.read(0, 4096):  # empty when the pipe closes
        lines, _, rest = (rest + chunk).rpartition(b"\n")
        for line in lines.split(b"\n"):
            if line and on_order is not None:
                on_order(from_json(dict[str, object], line))
    os._exit(0)


def announce(**facts: object) -> None:
    """Tell the parent that this child is up, with one line of JSON."""
    os.write(_parent, json.dumps(facts).encode() + b"\n")
