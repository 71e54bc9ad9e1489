"""Dask's RPC with deadlines, and Dask's settings in kdlab's processes.

Without a deadline a call to a stopped process never returns; Dask waits 30 s for a dead host.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import dask
from distributed import Client
from distributed.core import rpc
from distributed.protocol import pickle as dask_pickle

from kdlab.cluster.transport.security import Files, dask_security
from kdlab.errors import SchedulerUnreachable

T = TypeVar("T")

CALL_S = 10.0

# The profiler and the system monitor sample every 10 to 500 ms in each process, and
# worker-ttl would restart a busy worker; kdlab uses leases instead.
_SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.log-length": 60,  # else memory grows for ten hours
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.log-length": 1000,
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.comm.timeouts.connect": "5s",
    "distributed.comm.timeouts.tcp": "30s",
    "distributed.comm.retry.count": 0,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}


def configure_dask() -> None:
    """Apply kdlab's Dask settings to this process."""
    dask.config.set(_SETTINGS)


class PickleRefused(OSError):
    """The peer sent a pickle, which could run code in this process."""


def refuse_pickles() -> None:
    """Refuse every pickle in Dask's messages to this process from now on.

    A coordinator answers readers in plain values. Only its errors are pickles: they become
    errors of the connection.
    """

    def refused(*_: object, **__: object) -> object:
        raise PickleRefused("the coordinator sent a pickle, which kdlab does not open")

    dask_pickle.loads = refused


async def call_coordinator(
    remote: rpc, operation: str, deadline_s: float = CALL_S, **arguments: object
) -> object:
    """Call an operation of the coordinator in a scheduler, within a deadline.

    Its answers are in kdlab/cluster/coordination/coordinator_messages.py.

    Raises:
        OSError, TimeoutError: no answer, or the scheduler has no coordinator yet.
    """
    try:
        call: Awaitable[object] = getattr(remote, f"kdlab_{operation}")(**arguments)
        return await asyncio.wait_for(call, deadline_s)
    except AttributeError as error:  # what Dask raises for an unknown operation
        raise ConnectionError("the scheduler is up, its coordinator not yet") from error


def ask(
    address: str,
    operation: str,
    *,
    wait_s: float = CALL_S,
    tls: Files | None = None,
    **arguments: object,
) -> Any:
    """Call an operation of a scheduler from code without an event loop.

    Raises:
        SchedulerUnreachable: no answer at the address within `wait_s`.
    """

    async def once() -> Any:
        async with rpc(address, timeout=wait_s, **secured(tls)) as remote:
            return await asyncio.wait_for(getattr(remote, operation)(**arguments), wait_s)

    try:
        return run_isolated(once)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        # Dask raises TypeError for a tls:// address without a certificate.
        cause = str(error).split("\n", 1)[0] or type(error).__name__
        raise SchedulerUnreachable(address, wait_s, cause) from error


def secured(tls: Files | None) -> dict[str, object]:
    """Options for TLS on a connection, without a change to the settings of this process."""
    if tls is None:
        return {}
    return {"connection_args": dask_security(tls).get_connection_args("client")}


def check_address(address: str, wait_s: float = 5.0, tls: Files | None = None) -> None:
    """Check that a Dask scheduler answers.

    Raises:
        SchedulerUnreachable: it does not within `wait_s`.
    """
    ask(address, "identity", wait_s=wait_s, tls=tls)


def register_plugin(address: str, tls: Files | None, plugin: object) -> dict[str, object]:
    """Install a plugin in the scheduler or in all workers; return the scheduler's identity.

    Raises:
        OSError, ImportError, TimeoutError: no answer, or kdlab is missing there.
    """

    async def send() -> dict[str, object]:
        security = None if tls is None else dask_security(tls)
        async with Client(
            address, asynchronous=True, timeout="10s", security=security
        ) as client:
            await client.register_plugin(plugin)
            identity: dict[str, object] = await client.scheduler.identity()
            return identity

    return run_isolated(send)


def run_isolated(call: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine to its end in a separate thread.

    Its caller may be within an event loop, as a notebook's cell is; an interrupt ends the wait.
    """

    async def run() -> T:
        return await call()

    configure_dask()
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(asyncio.run(run()))
        except BaseException as error:  # raised in the caller
            done.set_exception(error)

    threading.Thread(target=work, name="kdlab-call", daemon=True).start()
    while not done.done():  # a signal just before a wait without a limit would not end it
        wait([done], timeout=0.5)
    return done.result()
