"""The base of all deployers, and a cluster of Dask as machines that come and go by demand."""

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

# Of a Dask worker that only hosts teachers: it has no tasks.
# Without a scheduler for so long it ends, should nobody be left who could end it.
WORKER_OPTIONS = {
    "nthreads": 1,
    "resources": {TEACHER: 1},
    "dashboard": False,
    "death_timeout": 60,
}
_CLOSE_S = 30.0


class Deployer(Spec, ABC):
    """Who starts machines for a pool, and how many it can: a row of what Dask has for that."""

    brings_scheduler: ClassVar[bool] = False  # of its own; else the run has one
    here: ClassVar[bool] = False  # its machines are processes of this one
    needs: ClassVar[tuple[str, str] | None] = None  # package, and kdlab's extra with it

    def up(self, scheduler: str, files: Files, folder: Path) -> Machines:
        """No machine yet, but the means to have some.

        Args:
            scheduler: where it listens.
            files: certificates of the pool.
            folder: for what machines write, where they see it.
        """
        made = self.cluster(scheduler, files, folder)
        return made if isinstance(made, Machines) else DaskMachines(made)

    @abstractmethod
    def cluster(self, scheduler: str, files: Files, folder: Path) -> Any:
        """Dask's, with no worker yet; or `Machines` that are none of its own."""

    def reached_at(self) -> str:
        """The address of this machine, as those that it starts know it."""
        return "127.0.0.1"

    def at_most(self) -> int | None:
        """As many machines as there are; None is as many as are asked for."""
        return None

    def check(self) -> None:
        """Find what is missing before a run starts.

        Raises:
            BadInput: a package or a command that it needs.
        """
        if self.needs is not None and importlib.util.find_spec(self.needs[0]) is None:
            raise BadInput(
                f"Machines for teachers are started by {self.needs[0]}, which is missing. Nothing "
                f"was started. pip install 'kdlab[{self.needs[1]}]'"
            )


class DaskMachines(Machines):
    """Any `Cluster` of Dask with `scale`; those made of specs give back the ones named."""

    adjustable, outlive_scheduler = True, False

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.address = cluster, str(cluster.scheduler_address)
        self._asked = 0  # of a cluster that does not say itself

    def wanted(self) -> int:
        if isinstance(self.cluster, SpecCluster):
            return int(self.cluster.sync(_kept, self.cluster))
        return self._asked

    def grow(self, count: int) -> None:
        if not isinstance(self.cluster, SpecCluster):
            self._asked += count
            self.cluster.scale(self._asked)
            return
        failed: dict[object, str] = self.cluster.sync(_grown, self.cluster, count)
        if failed:
            self._give_back(list(failed))
            name, why = next(iter(failed.items()))
            raise ClusterError(
                f"{len(failed)} of {count} machines for teachers could not be started: {name}: "
                f"{why}. The pool goes on without and asks again."
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
        if scheduler_gone:  # Dask would ask it first, wait for it, and never close
            self.cluster.scheduler.status = Status.closed
        for worker in getattr(self.cluster, "_created", ()):
            if worker.status == Status.created:  # it never came up, and Dask insists
                worker.status = Status.closed
        try:
            self.cluster.close(timeout=_CLOSE_S)
        except Exception as error:  # whatever SSH, a batch system or a process raises
            logging.getLogger("kdlab").warning("machines did not close: %s", error)


async def _kept(cluster: SpecCluster) -> int:
    """How many there are; those that were lost are forgotten, for Dask would count them."""
    for name in set(cluster.worker_spec) - set(cluster.workers):
        del cluster.worker_spec[name]
    return len(cluster.worker_spec)


async def _grown(cluster: SpecCluster, count: int) -> dict[object, str]:
    """Start so many more; which of them could not be, and why.

    `scale` would do it too, and lose what went wrong.
    """
    for _ in range(count):
        cluster.worker_spec.update(cluster.new_worker_spec())
    with suppress(Exception):  # of one of the workers, which says it again
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
    """A scheduler that is up already, and stays, where a cluster of Dask would start its own."""

    def __init__(self, address: str, **_: object) -> None:  # what a new one would be told
        super().__init__()
        self.address = self.external_address = address


class StandingCluster(SpecCluster):
    """Workers of a scheduler that is up already and outlives them."""

    def __init__(self, scheduler: str, files: Files, **options: Any) -> None:
        super().__init__(
            scheduler={"cls": StandingScheduler, "options": {"address": scheduler}},
            security=dask_security(files),
            shutdown_scheduler=False,
            **options,
        )


class HostNanny(Nanny):
    """Keeps a Dask worker whose machine shall have teachers.

    Args:
        arguments, options: of Dask's Nanny.
        tls: certificates, by their paths; Dask's command for SSH knows no other way.
        lifeline: it ends when its standard input does. What SSH has started goes on when the
            connection is closed, and not every server passes signals on.
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
        # Dask has every later child of this process call itself "dask worker [...]" by it.
        os.environ.pop("__DASK_PARENT_PID", None)
        return self

    def _watch_lifeline(self) -> None:
        while os.read(sys.stdin.fileno(), 1 << 16):
            pass  # nobody has anything to say here; the end is what matters
        self.loop.add_callback(self.close, reason="the lifeline has ended")
