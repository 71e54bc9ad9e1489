"""Teachers on the machines of ordinary Dask workers.

A worker with the resource `kdlab_teacher` (dask worker --resources "kdlab_teacher=1", or the
same option of any cluster class) becomes a host: its plugin starts teachers as processes of
their own, which join the same scheduler as workers. They go with the worker, and one that
dies is started again, a few times a minute at most.
"""

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from distributed import Worker, WorkerPlugin

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.wires.roles import MEANT_TO_END, TEACHER
from kdlab.cluster.wires.security import Files
from kdlab.cluster.wires.wire import register_plugin
from kdlab.supervision.children import Child, StartChild
from kdlab.supervision.restarts import Restarts

_TICK_S = 1.0
_RESTARTS, _RESTARTS_S = 3, 60.0  # of each teacher, in so many seconds


class TeacherHost(WorkerPlugin):
    """Keeps teachers beside a Dask worker; on workers of other roles it does nothing."""

    name = "kdlab-teacher-host"
    idempotent = True  # another run's does not replace it, with the teachers it keeps

    def __init__(
        self, teachers: int, threads: int, tls: Files | None, start: StartChild = Child
    ) -> None:
        self.teachers, self.threads, self.tls = teachers, threads, tls
        self.start, self.wanted = start, teachers
        self.restarts = Restarts(_RESTARTS * teachers, _RESTARTS_S)

    def setup(self, worker: Worker) -> None:
        self.children: list[Child] = []
        self.started = 0
        self.keeping: asyncio.Task[None] | None = None
        own = worker.state.total_resources.get(TEACHER)
        if not own or "kdlab-teacher" in worker.plugins:  # it is one itself
            return
        self.folder = Path(
            tempfile.mkdtemp(prefix="kdlab-teachers-", dir=worker.local_directory)
        )
        self.scheduler = worker.scheduler.address
        self.machine = str(worker.name)
        self.host = urlsplit(worker.address).hostname or "127.0.0.1"
        self.keeping = asyncio.create_task(self._keep())

    def teardown(self, worker: Worker) -> None:
        if self.keeping is not None:
            self.keeping.cancel()
        for child in self.children:
            child.stop()
        if self.keeping is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _keep(self) -> None:
        while True:
            await self.look(time.monotonic())
            await asyncio.sleep(_TICK_S)

    async def look(self, now: float) -> None:
        """Those that died come back, unless they were meant to end or die too often."""
        for child in list(self.children):
            if child.alive():
                continue
            self.children.remove(child)
            if child.process.returncode in MEANT_TO_END:
                self.wanted -= 1
        while len(self.children) < self.wanted:
            if self.started >= self.teachers and not self.restarts.allowed(now):
                return  # later
            self.children.append(await asyncio.to_thread(self._start))

    def _start(self) -> Child:
        name = f"{self.machine}.{os.getpid()}.{self.started}"
        self.started += 1
        config = TeacherConfig(
            scheduler=self.scheduler,
            name=name,
            host=self.host,
            threads=self.threads,
            scratch=str(self.folder),
            device="auto",
            tls=self.tls,
        )
        return self.start(
            "kdlab.cluster.teachers.teacher_server",
            config,
            self.folder / f"{os.getpid()}-{self.started}.log",
            environment={"OMP_NUM_THREADS": str(self.threads)},
        )


def machine_of(teacher: str) -> str:
    """The name of the worker that hosts this teacher, in Dask's cluster."""
    return teacher.rsplit(".", 2)[0]


def host_teachers(address: str, tls: Files | None, teachers: int, threads: int) -> None:
    """Have every worker of that role keep so many teachers, those that come later too."""
    register_plugin(address, tls, TeacherHost(teachers, threads, tls))
