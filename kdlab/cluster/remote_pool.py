"""Teachers that join a scheduler somewhere: `kdlab teacher ADDRESS` on each machine."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from distributed import Client

from kdlab.cluster.coordinator import Coordinator
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.pool import PoolSpec, deploy, wait_for_teacher
from kdlab.cluster.security import Files, Tls, address_faults, client_security
from kdlab.cluster.wire import ask, check_address, run_apart
from kdlab.config import Fault, register
from kdlab.config.spec import POSITIVE
from kdlab.errors import ClusterError


@register("cluster/remote_pool")
@dataclass(frozen=True, kw_only=True)
class RemotePool(PoolSpec):
    """A Dask scheduler that runs already; teachers join it with `kdlab teacher`.

    address: of the scheduler, for example tcp://10.0.0.1:8786 or tls://10.0.0.1:8786.
    wait_s: how long the run waits for its first teacher.
    tls: certificates that every machine of the pool has; needed for a tls:// address.
    """

    address: str
    wait_s: Annotated[float, POSITIVE] = 120.0
    tls: Tls | None = None

    def cross_faults(self) -> Iterator[Fault]:
        yield from address_faults(self.address, self.tls)

    def certificates(self) -> Files | None:
        return None if self.tls is None else self.tls.files(Path())

    def check(self) -> None:
        check_address(self.address, tls=self.certificates())

    def start(self, deployment: Deployment, folder: Path) -> "JoinedPool":
        return JoinedPool(self, deployment)


class JoinedPool:
    def __init__(self, spec: RemotePool, deployment: Deployment) -> None:
        self.spec, self.address = spec, spec.address
        self.teacher, self.tls = deployment.teacher, spec.certificates()
        install(spec.address, self.tls)
        deploy(spec.address, deployment, tls=self.tls, with_weights=True)

    def wait(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        return wait_for_teacher(
            self.address, self.spec.wait_s, lambda: None, stop, tls=self.tls
        )

    def close(self) -> None:
        return None  # the pool was there before the run and stays


def install(address: str, tls: Files | None = None) -> None:
    """Make a plain Dask scheduler a coordinator, if it is none yet.

    Raises:
        SchedulerUnreachable: nobody answers.
        ClusterError: the scheduler cannot import kdlab.
    """
    check_address(address, tls=tls)
    if has_coordinator(address, tls):
        return

    async def send() -> None:
        security = None if tls is None else client_security(tls)
        async with Client(
            address, asynchronous=True, timeout="10s", security=security
        ) as client:
            await client.register_plugin(Coordinator())

    try:
        run_apart(send)
    except (OSError, ImportError, TimeoutError) as error:
        raise ClusterError(
            f"The scheduler at {address} cannot become a coordinator: {error}. kdlab must "
            "be installed there too, or start it with\n"
            "    dask scheduler --preload kdlab.cluster.coordinator"
        ) from error


def has_coordinator(address: str, tls: Files | None = None) -> bool:
    try:
        return isinstance(ask(address, "kdlab_status", tls=tls), dict)
    except AttributeError:  # Dask's answer to an operation it does not know
        return False
