"""Base of all deployers, and Dask clusters as machines that follow the demand."""

import importlib.util
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from distributed import Nanny, SpecCluster
from distributed.core import Status
from distributed.deploy import Cluster
from distributed.deploy.spec import ProcessInterface

from kdlab.cluster.machines import Machines
from kdlab.cluster.teachers.teacher_host import machine_of
from kdlab.cluster.transport.roles import TEACHER, TeacherWorker
from kdlab.cluster.transport.security import Files, dask_security
from kdlab.config.spec import Spec
from kdlab.errors import BadInput, ClusterError

# Of a Dask worker that only hosts teachers and has no tasks. It ends after this time without a
# scheduler, in case nobody is left to end it.
WORKER_OPTIONS = {
    "nthreads": 1,
    "resources": {TEACHER: 1},
    "dashboard": False,
    "death_timeout": 60,
}
_CLOSE_S = 30.0


class Deployer(Spec, ABC):
    """Starts machines for a pool, through one of Dask's ways to deploy a cluster."""

    brings_scheduler: ClassVar[bool] = False  # else the run starts one
    local: ClassVar[bool] = False  # its machines are processes on this one
    needs: ClassVar[tuple[str, str] | None] = None  # package, and kdlab's extra for it

    def up(self, scheduler: str, files: Files, folder: Path) -> Machines:
        """Prepare a cluster without machines.

        Args:
            scheduler: address of the pool's scheduler.
            files: certificates of the pool.
            folder: for files of the machines, which must see it.
        """
        cluster = self.cluster(scheduler, files, folder)
        return cluster if isinstance(cluster, Machines) else DaskMachines(cluster)

    @abstractmethod
    def cluster(self, scheduler: str, files: Files, folder: Path) -> Any:
        """A Dask cluster without workers, or other `Machines`."""

    def reached_at(self) -> str:
        """Address at which the started machines reach this one."""
        return "127.0.0.1"

    def at_most(self) -> int | None:
        """Number of available machines; None is any number."""
        return None

    def check(self) -> None:
        """Check requirements before a run starts.

        Raises:
            BadInput: a package or a command is missing.
        """
        if self.needs is not None and importlib.util.find_spec(self.needs[0]) is None:
            raise BadInput(
                f"Machines for teachers need {self.needs[0]}, which is not installed. Nothing was "
                f"started. pip install 'kdlab[{self.needs[1]}]'"
            )


class DaskMachines(Machines):
    """Any `Cluster` of Dask with `scale`; a `SpecCluster` gives back machines by name."""

    adjustable, outlive_scheduler = True, False

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.address = cluster, str(cluster.scheduler_address)
        self._asked = 0  # machines of a cluster that does not count them

    def wanted(self) -> int:
        if isinstance(self.cluster, SpecCluster):
            return int(self.cluster.sync(_count, self.cluster))
        return self._asked

    def grow(self, count: int) -> None:
        if not isinstance(self.cluster, SpecCluster):
            self._asked += count
            self.cluster.scale(self._asked)
            return
        failed: dict[object, str] = self.cluster.sync(_grow, self.cluster, count)
        if failed:
            self._give_back(list(failed))
            name, why = next(iter(failed.items()))
            raise ClusterError(
                f"{len(failed)} of {count} machines for teachers could not be started: {name}: "
                f"{why}. The pool continues without them and tries again."
            )

    def withdraw(self, names: Sequence[str]) -> None:
        if isinstance(self.cluster, SpecCluster):
            known = {str(name): name for name in self.cluster.plan}
            self._give_back([known[name] for name in names if name in known])
        else:
            self._asked = max(0, self._asked - len(names))
            self.cluster.scale(self._asked)

    def has(self, name: str, pid: int) -> bool:
        plan = list(self.cluster.plan) if isinstance(self.cluster, SpecCluster) else []
        return machine_of(name) in map(str, plan)

    def _give_back(self, names: Sequence[object]) -> None:
        try:
            self.cluster.sync(self.cluster.scale_down, list(names))
        except Exception as error:  # whatever SSH, a batch system or a process raises
            raise ClusterError(
                f"{len(names)} machines for teachers could not be given back: {error}"
            ) from error

    def close(self, *, scheduler_gone: bool = False) -> None:
        if scheduler_gone:  # else Dask would wait for its answer and never close
            self.cluster.scheduler.status = Status.closed
        for worker in getattr(self.cluster, "_created", ()):
            if worker.status == Status.created:  # never came up; Dask would wait for it
                worker.status = Status.closed
        try:
            self.cluster.close(timeout=_CLOSE_S)
        except Exception as error:  # whatever SSH, a batch system or a process raises
            logging.getLogger("kdlab").warning("machines did not close: %s", error)


async def _count(cluster: SpecCluster) -> int:
    """Count the machines, and drop lost ones, which Dask would count too."""
    for name in set(cluster.worker_spec) - set(cluster.workers):
        del cluster.worker_spec[name]
    return len(cluster.worker_spec)


async def _grow(cluster: SpecCluster, count: int) -> dict[object, str]:
    """Start `count` more machines; returns those that failed, and why.

    `scale` would start them too, but lose the errors.
    """
    for _ in range(count):
        cluster.worker_spec.update(cluster.new_worker_spec())
    with suppress(Exception):  # of one worker, which raises it again below
        await cluster._correct_state()
    failed = {}
    for name, worker in list(cluster.workers.items()):
        if worker.status == Status.running:
            continue
        try:
            await worker
        except Exception as error:  # whatever SSH, a batch system or a process raises
            failed[name] = str(error) or type(error).__name__
    return failed


class StandingScheduler(ProcessInterface):
    """A running scheduler, in place of the one that a Dask cluster would start."""

    def __init__(self, address: str, **_: object) -> None:  # the options of a new one
        super().__init__()
        self.address = self.external_address = address


class StandingCluster(SpecCluster):
    """Workers of a running scheduler that outlives them."""

    def __init__(self, scheduler: str, files: Files, **options: Any) -> None:
        super().__init__(
            scheduler={"cls": StandingScheduler, "options": {"address": scheduler}},
            security=dask_security(files),
            shutdown_scheduler=False,
            **options,
        )


class HostNanny(Nanny):
    """Keeps a Dask worker whose machine hosts teachers.

    Args:
        arguments, options: of Dask's Nanny.
        tls: certificates as paths, the only way that Dask's command for SSH has.
        lifeline: end with the standard input. A process that SSH started survives the end of
            its connection, and not every server passes signals on.
    """

    def __init__(
        self,
        *arguments: Any,
        tls: Files | None = None,
        lifeline: bool = False,
        **options: Any,
    ) -> None:
        if tls is not None:
            options["security"] = dask_security(tls)
        super().__init__(*arguments, worker_class=TeacherWorker, **options)
        if lifeline:
            threading.Thread(target=self._watch_lifeline, daemon=True).start()

    async def start_unsafe(self) -> Self:
        await super().start_unsafe()
        # With it, Dask names every later child of this process "dask worker [...]".
        os.environ.pop("__DASK_PARENT_PID", None)
        return self

    def _watch_lifeline(self) -> None:
        while os.read(sys.stdin.fileno(), 1 << 16):
            pass  # only the end of the pipe matters
        self.loop.add_callback(self.close, reason="the lifeline has ended")
