"""Emulated teachers: they compute nothing and answer after the time of a real one.

They serve to measure all but the teacher: readers, connections, coordinator, schedules, with
hundreds of teachers on one machine. Their answers are all zeros (every class alike), and
whatever shows them says "emulated".
"""

from dataclasses import dataclass, replace
from pathlib import Path

from kdlab.cluster.child_configs import EmulatedTeachers, EmulatedTeachersConfig
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.machines import Machines
from kdlab.cluster.pool import LocalTeacherCount, PoolParts, PoolSpec, RunningPool
from kdlab.cluster.transport.security import pool_credentials
from kdlab.codec import part_of
from kdlab.config import register


@register("cluster/emulated_pool")
@dataclass(frozen=True, kw_only=True)
class EmulatedPool(PoolSpec, EmulatedTeachers):
    """Emulated teachers: they answer zeros after a service time, and compute nothing.

    At SIGUSR1 to their process one vanishes without notice, and another joins.
    """

    def as_served(self, deployment: Deployment) -> Deployment:
        return replace(deployment, reference=())  # zeros prove nothing

    def parts(self, folder: Path) -> PoolParts:
        return PoolParts(
            tls=pool_credentials(None, folder),
            scheduler={},
            machines=self._host,
            ready=len(self.rates),
            replaces=False,
        )

    def _host(self, pool: RunningPool) -> Machines:
        """Start the process of all emulated teachers."""
        config = EmulatedTeachersConfig(
            **vars(part_of(self, EmulatedTeachers)),
            scheduler=pool.address,
            host="127.0.0.1",
            tls=pool.tls,
            scratch=str(pool.folder / "scratch"),
        )
        log, host = pool.folder / "emulated-teachers.log", Machines()
        host.children = [pool.start_child("kdlab.testing.emulated_teachers", config, log)]
        return host

    def local_teachers(self) -> LocalTeacherCount:
        return LocalTeacherCount(first=self.teachers, rate=self.t_t)
