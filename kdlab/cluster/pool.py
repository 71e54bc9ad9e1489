"""The base of all teacher pools: how teachers come to be, and where they are found."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

from kdlab.cluster.child_configs import SchedulerConfig
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.deployment import Deployment, EngineChoice
from kdlab.cluster.wires.security import Files
from kdlab.cluster.wires.wire import ask
from kdlab.codec import typed
from kdlab.config import Range
from kdlab.config.spec import POSITIVE, Spec
from kdlab.errors import (
    ClusterError,
    RunStopped,
    SchedulerUnreachable,
    TeacherRefused,
    join_command,
)
from kdlab.supervision.children import Child

_SCHEDULER_START_S = 600.0  # a machine may be busy; one that has ended is seen at once
_CHUNK = 4 << 20  # bytes of weights in one message to the coordinator


class Pool(Protocol):
    """A pool that is up. Satisfies `soft_labels.source.TeacherPool`."""

    address: str
    teacher: str
    tls: Files | None

    def wait(self, stop: Callable[[], bool] = ...) -> PoolStatus:
        """Until a teacher is ready; what there is then."""

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class PoolSpec(Spec, ABC):
    """A pool, as a spec names it.

    ttl_s: a teacher silent for longer is given up (EDL's value is 6 s).
    """

    ttl_s: Annotated[float, POSITIVE] = 6.0

    @abstractmethod
    def start(self, deployment: Deployment, folder: Path) -> Pool:
        """Bring the pool up and publish what it serves; logs go to `folder`."""

    def as_served(self, deployment: Deployment) -> Deployment:
        """What its teachers are told, who may compute it in a way of their own."""
        return deployment

    def check(self) -> None:  # a pool may have nothing to check
        """Find what is wrong before a run starts.

        Raises:
            SchedulerUnreachable: for a pool that should be up already.
        """


@dataclass(frozen=True, kw_only=True)
class ComputingPoolSpec(PoolSpec):
    """Teachers that compute, wherever they run.

    engine: `auto` has each teacher measure what computes its model fastest on its machine (batch
        norms folded, bf16, ONNX Runtime, OpenVINO) and agrees with it, before it serves; `eager`
        is PyTorch as it is, whose soft labels are the same everywhere.
    share_answers: teachers keep what they answered (up to 256 MB), for others who ask for the same
        views of the same samples: trials of a sweep, students of other seeds. Not where a lone
        student has the pool for itself.
    threads: CPU threads of each teacher.
    """

    engine: EngineChoice = "auto"
    share_answers: bool = True
    threads: Annotated[int, Range(ge=1)] = 1

    def as_served(self, deployment: Deployment) -> Deployment:
        return replace(
            deployment.computed_by(self.engine), share_answers=self.share_answers
        )


def deploy(
    address: str,
    deployment: Deployment,
    *,
    tls: Files | None,
    with_weights: bool,
) -> None:
    """Have a pool serve something else; its teachers load it when they renew their leases.

    Args:
        address: of the scheduler.
        deployment: from now on.
        tls: certificates of the pool.
        with_weights: send them along, for teachers that cannot read their paths.

    Raises:
        TeacherRefused: the pool still serves others.
    """
    if with_weights:
        for member in deployment.members:
            send_weights(address, Path(member.weights), member.sha256, tls)
    refusal = ask(
        address, "kdlab_deploy", wait_s=120.0, tls=tls, deployment=deployment.to_json()
    )
    if refusal:
        raise TeacherRefused(f"The pool at {address} cannot serve this run: {refusal}.")


def send_weights(address: str, path: Path, sha256: str, tls: Files | None) -> None:
    """Bring a file to the coordinator in pieces, so that no renewal waits for it.

    Raises:
        SchedulerUnreachable: it does not answer.
        ClusterError: another file stands there under this hash.
    """
    size = path.stat().st_size
    put = partial(ask, address, "kdlab_weights_put", tls=tls, sha256=sha256)
    with path.open("rb") as file:
        have = put(offset=0, chunk=b"")
        while have < size:
            file.seek(have)
            now = put(offset=have, chunk=file.read(_CHUNK))
            if now <= have:
                raise ClusterError(
                    f"The scheduler at {address} has taken {now} of the {size} bytes of "
                    f"{path} and takes no more; is its disk full?"
                )
            have = now


def status_of(address: str, tls: Files | None) -> PoolStatus:
    """What the coordinator at this address says of its pool.

    Raises:
        SchedulerUnreachable: nobody answers there.
    """
    return typed(PoolStatus, ask(address, "kdlab_status", tls=tls))


def start_scheduler(
    deployment: Deployment,
    folder: Path,
    *,
    ttl_s: float,
    tls: Files | None = None,
    store: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    start_s: float = _SCHEDULER_START_S,
) -> tuple[Child, str]:
    """A scheduler with the coordinator in it, and its address.

    Args:
        deployment: what its teachers serve.
        folder: for its log and its journal.
        ttl_s: of the leases.
        tls: certificates; None is plain TCP.
        store: URL of a Redis, or path of a file, that keeps the leases; None is a file in
            `folder`.
        host: to listen on; another than loopback is for networks that one has made.
        port: where one was that this one replaces; 0 is any that is free.
        start_s: so long it may take to come up.
    """
    config = SchedulerConfig(
        host=host,
        port=port,
        tls=tls,
        ttl_s=ttl_s,
        deployment=deployment.to_json(),
        store_url=store or str(folder / "leases.json"),
        store_prefix=f"kdlab:{folder.parent.name}",
        journal=str(folder / "coordinator.jsonl"),
    )
    scheduler = Child(
        "kdlab.cluster.coordination.scheduler_process", config, folder / "scheduler.log"
    )
    try:
        return scheduler, str(scheduler.answer(start_s)["address"])
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
) -> PoolStatus:
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
    loading = 0
    while time.monotonic() < deadline:
        if stop():
            raise RunStopped("stopped by the user while teachers were starting")
        try:
            status = status_of(address, tls)
        except SchedulerUnreachable as error:  # whoever keeps it starts it again
            logging.getLogger("kdlab").warning("%s", error)
            problem()
            time.sleep(0.1)
            continue
        if len(status.ready) >= at_least:
            return status
        loading = len(status.teachers)
        problem()
        time.sleep(0.1)  # between looks; the deadline above ends it
    raise ClusterError(
        f"No teacher became ready at {address} within {wait_s:g} s "
        f"({loading} are loading). Start one:\n    {join_command(address)}"
    )
