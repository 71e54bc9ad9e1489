"""Teachers that compute nothing: they answer after the time a real one would take.

For measuring everything but the teacher: readers, wires, coordinator, schedules, with
hundreds of teachers on one machine. Their answers are all zeros (every class alike), and
everything that shows them says "emulated".
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kdlab.cluster.child_configs import EmulatedTeachers, EmulatedTeachersConfig
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.pool import PoolSpec, start_scheduler, wait_for_teacher
from kdlab.cluster.wires.security import Files, own_files
from kdlab.codec import part_of
from kdlab.config import register
from kdlab.errors import ClusterError
from kdlab.supervision.children import Child

_START_S = 600.0  # a machine may be busy; one that has ended is seen at once


@register("cluster/emulated_pool")
@dataclass(frozen=True, kw_only=True)
class EmulatedPool(PoolSpec, EmulatedTeachers):
    """Emulated teachers: they answer zeros after a service time, and compute nothing.

    At SIGUSR1 to their process one vanishes without a word, and another comes.
    """

    def start(self, deployment: Deployment, folder: Path) -> "RunningEmulatedPool":
        return RunningEmulatedPool(self, deployment, folder)


class RunningEmulatedPool:
    def __init__(self, spec: EmulatedPool, deployment: Deployment, folder: Path) -> None:
        self.spec, self.folder, self.teacher = spec, folder, deployment.teacher
        self.tls: Files | None = own_files(None, folder)
        self.scheduler, self.address = start_scheduler(
            replace(deployment, reference=()), folder, ttl_s=spec.ttl_s, tls=self.tls
        )
        try:
            config = EmulatedTeachersConfig(
                **vars(part_of(spec, EmulatedTeachers)),
                scheduler=self.address,
                host="127.0.0.1",
                tls=self.tls,
                scratch=str(folder / "scratch"),
            )
            self.host = Child(
                "kdlab.testing.emulated_teachers",
                config,
                folder / "emulated-teachers.log",
            )
        except BaseException:
            self.scheduler.stop()
            raise

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        return wait_for_teacher(
            self.address,
            _START_S,
            self._hopeless,
            stop,
            at_least=len(self.spec.rates),
            tls=self.tls,
        )

    def _hopeless(self) -> None:
        if not self.host.alive():
            raise ClusterError(self.host.exit_report("ended before it could serve"))

    def close(self) -> None:
        self.host.stop()
        self.scheduler.stop()
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
