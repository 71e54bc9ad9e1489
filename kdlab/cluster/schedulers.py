"""Start a pool's scheduler, install its coordinator, publish deployments, read its status."""

from functools import partial
from pathlib import Path

from kdlab.cluster.child_configs import SchedulerConfig
from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.coordinator_messages import PoolStatus
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.transport.security import Files
from kdlab.cluster.transport.wire import ask, check_address, register_plugin
from kdlab.codec import from_builtins
from kdlab.errors import ClusterError, TeacherRefused
from kdlab.supervision.children import Child

_START_S = 600.0  # a machine may be busy; an ended process is noticed at once
_CHUNK = 4 << 20  # bytes of weights in one message to the coordinator


def start_scheduler(
    deployment: Deployment,
    folder: Path,
    *,
    ttl_s: float,
    tls: Files | None = None,
    store: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    start_s: float = _START_S,
) -> tuple[Child, str]:
    """Start a scheduler with a coordinator; returns its process and its address.

    Log, journal and leases go to `folder`, unless `store` is the URL of a Redis or another file for
    the leases. Another `host` than loopback is for custom networks; `port` is that of the scheduler
    that this one replaces. It has `start_s` seconds to come up.
    """
    config = SchedulerConfig(
        host=host,
        port=port,
        tls=tls,
        ttl_s=ttl_s,
        deployment=deployment.to_json(),
        store_url=store or str(folder / "leases.json"),
        store_prefix=f"kdlab:{folder.parent.name}",
        journal=str(folder / "coordinator.jsonl"),
    )
    scheduler = Child(
        "kdlab.cluster.coordination.scheduler_process", config, folder / "scheduler.log"
    )
    try:
        return scheduler, str(scheduler.answer(start_s)["address"])
    except BaseException:
        scheduler.stop()
        raise


def install(
    address: str, tls: Files | None = None, coordinator: Coordinator | None = None
) -> None:
    """Install a coordinator in a plain Dask scheduler, if it has none.

    `coordinator` None installs one that stores nothing beyond its process.

    Raises:
        SchedulerUnreachable: the scheduler does not answer.
        ClusterError: the scheduler cannot import kdlab.
    """
    check_address(address, tls=tls)
    if has_coordinator(address, tls):
        return
    try:
        register_plugin(address, tls, coordinator or Coordinator())
    except (OSError, ImportError, TimeoutError) as error:
        raise ClusterError(
            f"The scheduler at {address} cannot become a coordinator: {error}. kdlab must "
            "be installed there too, or start it with\n"
            "    dask scheduler --preload kdlab.cluster.coordinator"
        ) from error


def has_coordinator(address: str, tls: Files | None = None) -> bool:
    try:
        return isinstance(ask(address, "kdlab_status", tls=tls), dict)
    except AttributeError:  # what Dask raises for an unknown operation
        return False


def deploy(
    address: str, deployment: Deployment, *, tls: Files | None, with_weights: bool
) -> None:
    """Publish a deployment; teachers load it when they renew their leases.

    `with_weights` uploads the weights, for teachers that cannot read their paths.

    Raises:
        TeacherRefused: the pool still serves other students.
    """
    if with_weights:
        for member in deployment.members:
            send_weights(address, Path(member.weights), member.sha256, tls)
    refusal = ask(
        address, "kdlab_deploy", wait_s=120.0, tls=tls, deployment=deployment.to_json()
    )
    if refusal:
        raise TeacherRefused(f"The pool at {address} cannot serve this run: {refusal}.")


def send_weights(address: str, path: Path, sha256: str, tls: Files | None) -> None:
    """Upload a file to the coordinator in pieces, so that no renewal waits for it.

    Raises:
        SchedulerUnreachable: it does not answer.
        ClusterError: it takes no more bytes.
    """
    size = path.stat().st_size
    put = partial(ask, address, "kdlab_weights_put", tls=tls, sha256=sha256)
    with path.open("rb") as file:
        have = put(offset=0, chunk=b"")
        while have < size:
            file.seek(have)
            now = put(offset=have, chunk=file.read(_CHUNK))
            if now <= have:
                raise ClusterError(
                    f"The scheduler at {address} has taken {now} of the {size} bytes of "
                    f"{path} and takes no more; is its disk full?"
                )
            have = now


def status_of(address: str, tls: Files | None) -> PoolStatus:
    """Status of the pool of the coordinator at this address.

    Raises:
        SchedulerUnreachable: it does not answer.
    """
    return from_builtins(PoolStatus, ask(address, "kdlab_status", tls=tls))
