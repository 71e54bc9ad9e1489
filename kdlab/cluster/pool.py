"""The base of all teacher pools: how teachers come to be, and where they are found."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kdlab.cluster.children import Child
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.security import Files
from kdlab.cluster.wire import ask
from kdlab.config.spec import Spec
from kdlab.errors import ClusterError, RunStopped, SchedulerUnreachable, TeacherRefused

_SCHEDULER_START_S = 60.0


class Pool(Protocol):
    """A pool that is up. Satisfies `soft_labels.source.TeacherPool`."""

    address: str
    teacher: str
    tls: Files | None

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


def deploy(
    address: str,
    deployment: Deployment,
    *,
    tls: Files | None,
    with_weights: bool,
    stop: Callable[[], bool] = lambda: False,
    wait_s: float = 0.0,
) -> None:
    """Have a pool serve something else; its teachers load it when they renew their leases.

    Args:
        address: of the scheduler.
        deployment: from now on.
        tls: certificates of the pool.
        with_weights: send them along, for teachers that cannot read their paths.
        stop: whether the user asked to stop.
        wait_s: for students that are still served with what was there before.

    Raises:
        TeacherRefused: the pool still serves others.
        RunStopped: the user asked meanwhile.
    """
    weights = None
    if with_weights:
        weights = [Path(m["weights"]).read_bytes() for m in deployment.members]
    deadline = time.monotonic() + wait_s
    while True:
        refusal = ask(
            address,
            "kdlab_deploy",
            wait_s=120.0,
            tls=tls,
            deployment=deployment.to_json(),
            weights=weights,
        )
        if not refusal:
            return
        if stop():
            raise RunStopped("stopped by the user while the pool was still in use")
        if time.monotonic() >= deadline:
            raise TeacherRefused(f"The pool at {address} cannot serve this run: {refusal}.")
        time.sleep(0.1)  # between tries; the deadline above ends it


def start_scheduler(
    deployment: Deployment,
    folder: Path,
    *,
    ttl_s: float,
    tls: Files | None = None,
    store: str | None = None,
    host: str = "127.0.0.1",
) -> tuple[Child, str]:
    """A scheduler with the coordinator in it, and its address.

    Args:
        deployment: what its teachers serve.
        folder: for its log and its journal.
        ttl_s: of the leases.
        tls: certificates; None is plain TCP.
        store: URL of a Redis that keeps the leases; None keeps them in memory.
        host: to listen on; another than loopback is for networks that one has made.
    """
    config = {
        "host": host,
        "tls": tls,
        "coordinator": {
            "ttl_s": ttl_s,
            "deployment": deployment.to_json(),
            "store_url": store,
            "store_prefix": f"kdlab:{folder.parent.name}",
            "journal": str(folder / "coordinator.jsonl"),
        },
    }
    scheduler = Child("kdlab.cluster.scheduler_process", config, folder / "scheduler.log")
    try:
        return scheduler, str(scheduler.answer(_SCHEDULER_START_S)["address"])
    except BaseException:
        scheduler.stop()
        raise


def wait_for_teacher(
    address: str,
    wait_s: float,
    problem: Callable[[], None],
    stop: Callable[[], bool],
    at_least: int = 1,
    tls: Files | None = None,
) -> dict[str, Any]:
    """Until so many teachers are ready.

    Args:
        address: of the scheduler.
        wait_s: how long at most.
        problem: called meanwhile; raises when waiting is hopeless.
        stop: whether the user asked to stop.
        at_least: how many.
        tls: certificates of the pool.

    Raises:
        ClusterError: none became ready in time.
    """
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            status: dict[str, Any] = ask(address, "kdlab_status", tls=tls)
        except SchedulerUnreachable as error:
            raise ClusterError(
                f"The pool's scheduler at {address} is gone: {error}"
            ) from error
        if stop():
            raise RunStopped("stopped by the user while teachers were starting")
        if sum(t["state"] != "registered" for t in status["teachers"]) >= at_least:
            return status
        problem()
        time.sleep(0.1)  # between looks; the deadline above ends it
    raise ClusterError(
        f"No teacher became ready at {address} within {wait_s:g} s "
        f"({len(status['teachers'])} are loading). Start one:\n    kdlab teacher {address}"
    )
