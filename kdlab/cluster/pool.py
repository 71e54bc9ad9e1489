"""The base of all teacher pools: how teachers come to be, and where they are found."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kdlab.cluster.deployment import Deployment
from kdlab.cluster.wire import ask
from kdlab.config.spec import Spec
from kdlab.errors import ClusterError, RunStopped, SchedulerUnreachable


class Pool(Protocol):
    """A pool that is up. Satisfies `soft_labels.source.TeacherPool`."""

    address: str

    def wait(self, stop: Callable[[], bool] = ...) -> dict[str, Any]:
        """Until a teacher is ready; the coordinator's status."""

    def close(self) -> None: ...


class PoolSpec(Spec, ABC):
    @abstractmethod
    def start(self, deployment: Deployment, folder: Path) -> Pool:
        """Bring the pool up and publish what it serves; logs go to `folder`."""

    def check(self) -> None:  # a pool may have nothing to check
        """Find what is wrong before a run starts.

        Raises:
            SchedulerUnreachable: for a pool that should be up already.
        """


def wait_for_teacher(
    address: str, wait_s: float, problem: Callable[[], None], stop: Callable[[], bool]
) -> dict[str, Any]:
    """Until one teacher is ready.

    Args:
        address: of the scheduler.
        wait_s: how long at most.
        problem: called meanwhile; raises when waiting is hopeless.
        stop: whether the user asked to stop.

    Raises:
        ClusterError: none became ready in time.
    """
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            status: dict[str, Any] = ask(address, "kdlab_status")
        except SchedulerUnreachable as error:
            raise ClusterError(
                f"The pool's scheduler at {address} is gone: {error}"
            ) from error
        if stop():
            raise RunStopped("stopped by the user while teachers were starting")
        if any(t["state"] != "registered" for t in status["teachers"]):
            return status
        problem()
        time.sleep(0.1)  # between looks; the deadline above ends it
    raise ClusterError(
        f"No teacher became ready at {address} within {wait_s:g} s "
        f"({len(status['teachers'])} are loading). Start one:\n    kdlab teacher {address}"
    )
