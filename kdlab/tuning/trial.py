"""A trial is a run without a process and without a tracker of its own."""

from collections.abc import Callable

from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.pool import status_of
from kdlab.experiment.folder import RunFolder
from kdlab.run.process.run_process import RunProcess
from kdlab.soft_labels.source import PoolAddress


class SharedPool(PoolAddress):
    """The sweep's; it outlives the trial. Satisfies `cluster.pool.Pool`."""

    def wait(self, stop: Callable[[], bool] = lambda: False) -> PoolStatus:
        return status_of(self.address, self.tls)

    def close(self) -> None:
        return None


class TrialProcess(RunProcess):
    """Within a warm worker; the sweep draws its pictures and writes to MLflow."""

    def __init__(
        self, run: RunFolder, stop: Callable[[], bool], pool: PoolAddress | None
    ) -> None:
        super().__init__(run, stop, SharedPool.of(pool))

    @property
    def tracking_uri(self) -> str | None:
        return self.spec.tracking.uri if self.spec.tracking.enabled else None

    def track(self) -> None:
        return None

    def draw(self) -> None:
        return None
