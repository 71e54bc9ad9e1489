"""Teachers on this machine: a scheduler and n teachers, each a process of its own."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from kdlab.cluster.children import Child
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.pool import PoolSpec, start_scheduler, wait_for_teacher
from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE
from kdlab.errors import ClusterError

_START_S = 60.0


@register("cluster/local_pool")
@dataclass(frozen=True, kw_only=True)
class LocalPool(PoolSpec):
    """Teachers as processes on this machine, started with the run and ended with it.

    teachers: how many.
    threads: CPU threads of each teacher.
    ttl_s: a teacher silent for longer is given up (EDL's value is 6 s).
    """

    teachers: Annotated[int, Range(ge=1)] = 2
    threads: Annotated[int, Range(ge=1)] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ttl_s: Annotated[float, POSITIVE] = 6.0

    def start(self, deployment: Deployment, folder: Path) -> "RunningLocalPool":
        return RunningLocalPool(self, deployment, folder)


class RunningLocalPool:
    def __init__(self, spec: LocalPool, deployment: Deployment, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.scheduler, self.address = start_scheduler(deployment, spec.ttl_s, folder)
        self.teachers: list[Child] = []
        try:
            for _ in range(spec.teachers):
                self.add_teacher()
        except BaseException:
            self.close()
            raise

    def add_teacher(self) -> Child:
        name = f"teacher-{len(self.teachers)}"
        config = {
            "scheduler": self.address,
            "name": name,
            "host": "127.0.0.1",
            "threads": self.spec.threads,
            "scratch": str(self.folder / "scratch"),
            "device": self.spec.device,
        }
        child = Child(
            "kdlab.cluster.teacher_server",
            config,
            self.folder / f"{name}.log",
            environment={"OMP_NUM_THREADS": str(self.spec.threads)},
        )
        self.teachers.append(child)
        return child

    def wait(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return wait_for_teacher(self.address, _START_S, self._hopeless, stop)

    def _hopeless(self) -> None:
        if not any(child.alive() for child in self.teachers):
            raise ClusterError(self.teachers[0].obituary("ended before it could serve"))

    def close(self) -> None:
        for child in [*self.teachers, self.scheduler]:
            child.stop()
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
