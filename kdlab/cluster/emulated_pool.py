"""Teachers that compute nothing: they answer after the time a real one would take.

For measuring everything but the teacher: readers, wires, coordinator, schedules, with
hundreds of teachers on one machine. Their answers are all zeros (every class alike), and
everything that shows them says "emulated".
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from kdlab.cluster.child_configs import EmulatedTeachersConfig
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.pool import PoolSpec, start_scheduler, wait_for_teacher
from kdlab.cluster.wires.security import Files, own_files
from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE, SHARE
from kdlab.errors import ClusterError
from kdlab.supervision.children import Child

_START_S = 600.0  # a machine may be busy; one that has ended is seen at once


@register("cluster/emulated_pool")
@dataclass(frozen=True, kw_only=True)
class EmulatedPool(PoolSpec):
    """Emulated teachers: they answer zeros after a service time, and compute nothing.

    At SIGUSR1 to their process one vanishes without a word, and another comes.

    teachers: how many, all in one process.
    t_t: samples/s of each.
    more: others beside them: (samples/s, how many).
    jitter: service times are spread evenly by this share around their mean.
    seed: of the jitter.
    """

    teachers: Annotated[int, Range(ge=1, le=5000)] = 4
    t_t: Annotated[float, POSITIVE] = 1000.0
    more: tuple[tuple[float, int], ...] = ()
    jitter: Annotated[float, SHARE] = 0.1
    seed: int = 0
    ttl_s: Annotated[float, POSITIVE] = 6.0

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
                scheduler=self.address,
                host="127.0.0.1",
                tls=self.tls,
                scratch=str(folder / "scratch"),
                teachers=spec.teachers,
                t_t=spec.t_t,
                more=spec.more,
                jitter=spec.jitter,
                seed=spec.seed,
            )
            self.host = Child(
                "kdlab.cluster.teachers.emulated_teachers",
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
            at_least=self.spec.teachers + sum(count for _, count in self.spec.more),
            tls=self.tls,
        )

    def _hopeless(self) -> None:
        if not self.host.alive():
            raise ClusterError(self.host.exit_report("ended before it could serve"))

    def close(self) -> None:
        self.host.stop()
        self.scheduler.stop()
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
