"""Teachers that join a scheduler somewhere: `kdlab teacher ADDRESS` on each machine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from distributed import Client

from kdlab.cluster.coordinator import Coordinator
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.pool import PoolSpec, wait_for_teacher
from kdlab.cluster.wire import ask, check_address, run_apart
from kdlab.config import register
from kdlab.config.spec import POSITIVE
from kdlab.errors import ClusterError, TeacherRefused


@register("cluster/remote_pool")
@dataclass(frozen=True, kw_only=True)
class RemotePool(PoolSpec):
    """A Dask scheduler that runs already; teachers join it with `kdlab teacher`.

    address: of the scheduler, for example tcp://10.0.0.1:8786.
    wait_s: how long the run waits for its first teacher.
    """

    address: str
    wait_s: Annotated[float, POSITIVE] = 120.0

    def check(self) -> None:
        check_address(self.address)

    def start(self, deployment: Deployment, folder: Path) -> "JoinedPool":
        return JoinedPool(self, deployment)


class JoinedPool:
    def __init__(self, spec: RemotePool, deployment: Deployment) -> None:
        self.spec, self.address = spec, spec.address
        install(spec.address)
        refusal = ask(
            spec.address,
            "kdlab_deploy",
            wait_s=120.0,
            deployment=deployment.to_json(),
            weights=Path(deployment.weights).read_bytes(),  # for machines without that path
        )
        if refusal:
            raise TeacherRefused(
                f"The pool at {spec.address} cannot serve this run: {refusal}."
            )

    def wait(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return wait_for_teacher(self.address, self.spec.wait_s, lambda: None, stop)

    def close(self) -> None:
        return None  # the pool was there before the run and stays


def install(address: str) -> None:
    """Make a plain Dask scheduler a coordinator, if it is none yet.

    Raises:
        SchedulerUnreachable: nobody answers.
        ClusterError: the scheduler cannot import kdlab.
    """
    check_address(address)
    if has_coordinator(address):
        return

    async def send() -> None:
        async with Client(address, asynchronous=True, timeout="10s") as client:
            await client.register_plugin(Coordinator())

    try:
        run_apart(send)
    except (OSError, ImportError, TimeoutError) as error:
        raise ClusterError(
            f"The scheduler at {address} cannot become a coordinator: {error}. kdlab must "
            "be installed there too, or start it with\n"
            "    dask scheduler --preload kdlab.cluster.coordinator"
        ) from error


def has_coordinator(address: str) -> bool:
    try:
        return isinstance(ask(address, "kdlab_status"), dict)
    except AttributeError:  # Dask's answer to an operation it does not know
        return False
