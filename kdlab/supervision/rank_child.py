"""A rank's process as its supervisor sees it: on this machine, or on a Dask worker's."""

from pathlib import Path
from typing import Protocol

import psutil

from kdlab.codec import plain
from kdlab.supervision.children import Child
from kdlab.supervision.heartbeat import Heartbeat, HeartbeatFile


class RankChild(Protocol):
    """What a group asks of the process of a rank."""

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


class LocalRank(Child):
    """A child of this process; its signs of life lie in shared memory."""

    def __init__(
        self,
        module: str,
        config: object,
        log: Path,
        pulse: Path,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._pulse = HeartbeatFile(pulse)
        super().__init__(
            module, plain(config) | {"pulse": str(pulse)}, log, environment=environment
        )

    machine = "here"

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def sign(self) -> Heartbeat:
        return self._pulse.read()

    def is_stopped(self) -> bool:
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> None:
        self.process.kill()


def start_here(module: str, config: object, log: Path, pulse: Path) -> RankChild:
    """On this machine. Ranks of a group talk over loopback, whatever its name resolves to."""
    return LocalRank(module, config, log, pulse, {"GLOO_SOCKET_IFNAME": "lo"})
