"""Child processes that cannot outlive their parent.

A child reads its configuration as one line of JSON from standard input, and then keeps
that pipe as a lifeline: when it closes, because the parent closed it or died in any way,
the child ends. No child is left behind by a SIGKILL.
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

_GIVES_WAY = 5  # added to the niceness


class Child:
    """A process `python -m MODULE` with its log file and lifeline.

    Its main reads the dataclass `config` by `configured`; what it prints is appended to
    `log`. Its signs of life, if it gives any, are in `pulse`, which its `config` has a place
    for. It shares the open files `fds` under the same numbers. `environment` comes beside
    this process's own; `within` are words before the command, such as those that enter a
    network namespace.
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
        everything = os.environ | (environment or {})
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*within, sys.executable, "-m", "kdlab.supervision", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                pass_fds=tuple(fds),
                env=everything,
            )
        self._received = b""
        try:
            self._tell(to_builtins(config) | ({"pulse": str(pulse)} if pulse else {}))
        except BrokenPipeError as error:
            why = self.exit_report("ended before it was configured")
            raise ClusterError(why) from error

    def _tell(self, message: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def send(self, **order: object) -> bool:
        """One line of JSON to a child that listens; False when it is gone."""
        try:
            self._tell(order)
        except (BrokenPipeError, ValueError):  # ValueError: closed on our side
            return False
        return True

    def messages(self) -> list[dict[str, object]]:
        """What it announced since the last call; never waits."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return []
        end = self.process.stdout.fileno()
        while select.select([end], [], [], 0)[0] and (chunk := os.read(end, 1 << 16)):
            self._received += chunk
        whole, _, self._received = self._received.rpartition(b"\n")
        return [from_json(dict[str, object], line) for line in whole.split(b"\n") if line]

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
        """The one line of JSON a child prints when it is up.

        Raises:
            ClusterError: it ended first, or said nothing in time; quotes its log.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            alive = self.alive()  # asked first: last words are read after it
            if said := self.messages():
                return said[0]
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
        """Close the lifeline, wait, and kill what does not go. May be called twice."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # it is gone already, which is what we want
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RankChild(Protocol):
    """A child that gives signs of life, here (`Child`) or beside a worker of a Dask cluster."""

    @property
    def pid(self) -> int: ...

    @property
    def machine(self) -> str:
        """The same for ranks that share GPUs and memory."""

    @property
    def exit_code(self) -> int | None: ...

    def messages(self) -> list[dict[str, object]]: ...

    def send(self, **order: object) -> bool: ...

    def alive(self) -> bool: ...

    def sign(self) -> Heartbeat:
        """Its newest sign of life, on the clock of the machine that asks."""

    def is_stopped(self) -> bool:
        """Whether somebody stopped it (SIGSTOP)."""

    def kill(self) -> None: ...

    def exit_report(self, what: str) -> str: ...

    def stop(self, timeout_s: float = 5.0) -> None: ...


StartChild = Callable[..., Child]  # as Child is called; a test has a script of one


def tail(log: Path, lines: int = 15) -> str:
    if not log.exists():
        return "  (no log)"
    last = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  {line}" for line in last) or "  (empty)"


_parent = 1  # where `announce` writes; `configured` moves it off standard output


def lower_priority() -> None:
    """This process serves a trainer on the same machine, and the trainer comes first.

    Else each message that arrives here may push the trainer off its core. What that costs
    was within the noise of the machine it was measured on (two cores, +-0.05). Nothing
    starves: a trainer without soft labels sleeps.
    """
    os.nice(_GIVES_WAY)


def configured(
    kind: type[T], on_order: Callable[[dict[str, object]], None] | None = None
) -> T:
    """In a child: its configuration; from here on it lives as long as its parent.

    `on_order` is called, in a thread of its own, with every order the parent tells later.

    Raises:
        MessageError: the parent has sent another configuration.
    """
    # Unbuffered, because a thread that waits in a buffered read holds a lock that the
    # interpreter wants at its end.
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("this module is started by kdlab, which tells it what to do")
        line += byte
    config = from_json(kind, line)
    # What anything prints goes to the log: nobody reads the pipe after `announce`.
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
    while chunk := os.read(0, 4096):  # it is empty when the pipe closes
        whole, _, rest = (rest + chunk).rpartition(b"\n")
        for line in whole.split(b"\n"):
            if line and on_order is not None:
                on_order(from_json(dict[str, object], line))
    os._exit(0)


def announce(**facts: object) -> None:
    """In a child: tell the parent that it is up."""
    os.write(_parent, json.dumps(facts).encode() + b"\n")
