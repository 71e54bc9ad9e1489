"""Teachers on the machines of ordinary Dask workers.

A worker with the resource `kdlab_teacher` (dask worker --resources "kdlab_teacher=1", or the
same option of any cluster class) becomes a host: its plugin starts teachers as separate
processes, which join the same scheduler as workers and end with their host. A teacher that
dies is restarted, later each time, and given up after too many restarts.
"""

import logging
import math
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from distributed import Worker, WorkerPlugin

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.keeper import PoolKeeper
from kdlab.cluster.transport.roles import MEANT_TO_END, TEACHER
from kdlab.cluster.transport.security import Files
from kdlab.cluster.transport.wire import register_plugin
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.children import Child, StartChild
from kdlab.supervision.supervisor import ChildLost, Supervisor

_TICK_S, _END_S = 1.0, 5.0
# Restarts of each within these seconds; one that dies at once uses them in 5 minutes.
_RESTARTS, _RESTARTS_S = 10, 900.0


class TeacherHost(WorkerPlugin):
    """Runs teachers beside a Dask worker; does nothing on workers of other roles."""

    name = "kdlab-teacher-host"
    idempotent = True  # another run's must not replace it and its teachers

    def __init__(
        self, teachers: int, threads: int, tls: Files | None, start: StartChild = Child
    ) -> None:
        self.teachers, self.threads, self.tls, self.start = teachers, threads, tls, start

    def setup(self, worker: Worker) -> None:
        self.keeper: PoolKeeper | None = None
        hosts = worker.state.total_resources.get(TEACHER)
        if not hosts or "kdlab-teacher" in worker.plugins:  # it is a teacher itself
            return
        self.folder = Path(
            tempfile.mkdtemp(prefix="kdlab-teachers-", dir=worker.local_directory)
        )
        self.scheduler = worker.scheduler.address
        self.machine = str(worker.name)
        self.host = urlsplit(worker.address).hostname or "127.0.0.1"
        self.started = 0
        self.supervisor: Supervisor[int] = Supervisor()
        for number in range(self.teachers):
            again = Backoff(1.0, longest_s=60.0, most=_RESTARTS, within_s=_RESTARTS_S)
            self.supervisor.keep(number, self._start, again)
        self.update()
        self.keeper = PoolKeeper("teachers", _TICK_S, self.update)
        self.keeper.start()

    def teardown(self, worker: Worker) -> None:
        if self.keeper is not None:
            self.keeper.close()
            self.supervisor.close(_END_S)
            shutil.rmtree(self.folder, ignore_errors=True)

    def update(self) -> None:
        """Restart teachers that died, unless they were meant to end or died too often."""
        for event in self.supervisor.events():
            match event:
                case ChildLost(number, code) if code in MEANT_TO_END:
                    self.supervisor.drop(number)
                case ChildLost(why=why, again_s=again_s):
                    state = f"lost and restarts in {again_s:g} s"
                    if again_s == math.inf:
                        state = f"given up after {_RESTARTS} restarts in {_RESTARTS_S:g} s"
                    logging.getLogger("kdlab").warning("A teacher is %s: %s", state, why)

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
        log = self.folder / f"{os.getpid()}-{self.started}.log"
        return start_teacher(self.start, config, log)


def start_teacher(start: StartChild, config: TeacherConfig, log: Path) -> Child:
    threads = {"OMP_NUM_THREADS": str(config.threads)}
    return start("kdlab.cluster.teachers.teacher_server", config, log, environment=threads)


def machine_of(teacher: str) -> str:
    """Name of the Dask worker that hosts this teacher."""
    return teacher.rsplit(".", 2)[0]


def host_teachers(address: str, tls: Files | None, teachers: int, threads: int) -> None:
    """Have every worker of that role, also later ones, run this many teachers."""
    register_plugin(address, tls, TeacherHost(teachers, threads, tls))
