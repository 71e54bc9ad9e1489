"""Ranks on the workers of a Dask cluster, controlled by a remote run.

A `RankHost`, a plugin of every worker, has the processes as its children. The run polls each
worker twenty times a second for updates: messages, heartbeats, exit codes.

Run folder and data must be at the same paths on all machines (a shared file system), as the
checkpoints of EDL-Dist (section 3.4) must. Dask carries only rare messages; ranks talk to each
other through torch.distributed.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from distributed.core import ConnectionPool

from kdlab.cluster.rank_host import RankHost, RankUpdate
from kdlab.cluster.transport.roles import RANK, TEACHER
from kdlab.cluster.transport.security import Files
from kdlab.cluster.transport.wire import (
    CALL_S,
    check_address,
    configure_dask,
    register_plugin,
    secured,
)
from kdlab.codec import from_builtins, to_builtins
from kdlab.errors import BadInput, ClusterError
from kdlab.supervision.heartbeat import Heartbeat

_ASK_S = 0.05
_LOST_S = 15.0  # without an answer a worker is lost, and with it its ranks
_NEW_S = 5.0  # between polls of the list of workers
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerRoles:
    """The fields of a scheduler's description of a worker that are read."""

    resources: dict[str, float] | None = None


def for_ranks(workers: object) -> list[str]:
    """Addresses of the workers that may train, which teachers never do.

    Args:
        workers: descriptions by address, from the scheduler.
    """
    known = from_builtins(dict[str, WorkerRoles], workers)
    roles = {worker: about.resources or {} for worker, about in known.items()}
    named = sorted(w for w, has in roles.items() if RANK in has)
    return named or sorted(w for w, has in roles.items() if TEACHER not in has)


def with_keepers(address: str, tls: Files | None) -> list[str]:
    """Install a `RankHost` on all workers; returns the addresses of those that may train.

    Raises:
        SchedulerUnreachable: the scheduler does not answer.
        BadInput: no worker may train.
        ClusterError: the workers cannot import kdlab.
    """
    check_address(address, tls=tls)
    try:
        workers = for_ranks(register_plugin(address, tls, RankHost())["workers"])
    except (OSError, ImportError, TimeoutError) as error:
        raise ClusterError(
            f"The workers of {address} cannot keep ranks: {error}. kdlab must be installed on "
            "every machine of the cluster."
        ) from error
    if not workers:
        raise BadInput(
            f"The Dask scheduler at {address} has no workers that may train: teachers are "
            "never given ranks, and where some workers have the resource kdlab_rank, only "
            "those are. Start one on each machine:\n"
            f"    dask worker {address} --no-nanny --nthreads 1"
        )
    return workers


async def connections(tls: Files | None) -> ConnectionPool:
    """A pool of connections, so that a silent worker does not block the others."""
    return await ConnectionPool(limit=4096, timeout=CALL_S, **secured(tls))


class HostedRank:
    """A rank on a worker. Satisfies `RankChild`; its state is some ms old."""

    def __init__(self, hosts: "DaskHosts", worker: str, name: str, pid: int) -> None:
        self.hosts, self.worker, self.name, self.pid = hosts, worker, name, pid
        self.machine = str(urlsplit(worker).hostname)
        self.exit_code: int | None = None
        self._alive, self._stopped = True, False
        self._words: deque[dict[str, object]] = deque()
        self._sign = Heartbeat(0, 0, 0.0)
        self._exit_report = ""

    def update(self, news: RankUpdate) -> None:
        """Take in an update, in the listening thread."""
        self._words.extend(news.messages)
        generation, step, ago = news.sign
        self._sign = Heartbeat(generation, step, time.monotonic() - ago)
        self._stopped, self.exit_code = news.stopped, news.exit_code
        self._exit_report = news.exit_report
        self._alive = news.alive  # last: when it is seen dead, its messages are complete

    def lost(self, why: str) -> None:
        self.exit_code, self._exit_report = self.exit_code or -9, why
        self._alive = False

    def messages(self) -> list[dict[str, object]]:
        return [self._words.popleft() for _ in range(len(self._words))]

    def send(self, **order: object) -> bool:
        return bool(
            self.hosts.ask(self.worker, "kdlab_rank_send", name=self.name, order=order)
        )

    def alive(self) -> bool:
        return self._alive

    def sign(self) -> Heartbeat:
        return self._sign

    def is_stopped(self) -> bool:
        return self._stopped

    def kill(self) -> None:
        self.hosts.ask(self.worker, "kdlab_rank_end", name=self.name, kill=True)

    def exit_report(self, what: str) -> str:
        return self._exit_report or f"rank {self.name} on {self.worker} {what}"

    def stop(self, timeout_s: float = 5.0) -> None:
        self.hosts.forget(self)
        self.hosts.ask(self.worker, "kdlab_rank_end", name=self.name, kill=False)


class DaskHosts:
    """Workers of a Dask cluster that host ranks; raises what `with_keepers` does."""

    def __init__(
        self,
        address: str,
        tls: Files | None = None,
        *,
        keepers: Callable[[str, Files | None], list[str]] = with_keepers,
        connect: Callable[[Files | None], Awaitable[ConnectionPool]] = connections,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = keepers(address, tls)
        self.tls, self.address, self._connect, self._now = tls, address, connect, now
        self._ranks: list[HostedRank] = []
        self._last_error = "none"  # of the last failed call
        self._heard: dict[str, float] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._listen, name="hosts", daemon=True)
        self._closing, self._up = threading.Event(), threading.Event()
        self._thread.start()
        self._up.wait(CALL_S)

    # For a group

    def start(self, module: str, config: object, log: Path, pulse: Path) -> HostedRank:
        """Start a rank on the worker with the fewest ranks of this run."""
        alive = [w for w in self.workers if not self._is_lost(w)]
        if not alive:
            raise ClusterError(
                "All workers of the Dask cluster are lost; no rank can start."
            )
        used = [rank.worker for rank in self._ranks if rank.alive()]
        name = f"{log.stem}@{log.parent}"
        for worker in sorted(alive, key=lambda w: (used.count(w), self.workers.index(w))):
            pid = self.ask(
                worker,
                "kdlab_rank_start",
                name=name,
                module=module,
                config=to_builtins(config),
                log=str(log),
                pulse=str(pulse),
            )
            if isinstance(pid, int):
                rank = HostedRank(self, worker, name, pid)
                self._ranks.append(rank)
                return rank
            # It may have started after all, and would never get an order.
            self._run(
                self._once(worker, "kdlab_rank_end", {"name": name, "kill": False})
            ).add_done_callback(lambda ended: ended.exception())
        raise ClusterError(
            f"None of the Dask workers {', '.join(alive)} started a rank. Last error: "
            f"{self._last_error}. All machines need the run folder at the same path, writable."
        )

    def rendezvous(self, first: HostedRank) -> str:
        """Address for the rendezvous of a generation, on the host of its first rank."""
        address = self.ask(first.worker, "kdlab_rank_port") or ("127.0.0.1", 0)
        host, port = from_builtins(tuple[str, int], address)
        return f"tcp://{host}:{port}"

    def forget(self, rank: HostedRank) -> None:
        if rank in self._ranks:
            self._ranks.remove(rank)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(2 * CALL_S)

    def ask(self, worker: str, operation: str, **arguments: object) -> object:
        """Call an operation of a worker; None when it does not answer."""
        try:
            return self._run(self._once(worker, operation, arguments)).result(CALL_S + 1)
        except (OSError, TimeoutError) as error:
            self._last_error = f"{type(error).__name__}: {error}"
            return None  # the caller soon sees that the worker is lost

    # In the listening thread

    def _run(self, work: Coroutine[object, None, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _listen(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._follow())

    async def _follow(self) -> None:
        configure_dask()
        self._pool = await self._connect(self.tls)
        self._up.set()
        following = {w: asyncio.create_task(self._follow_one(w)) for w in self.workers}
        looked_at = time.monotonic()
        while not self._closing.is_set():
            await asyncio.sleep(_ASK_S)
            if time.monotonic() - looked_at < _NEW_S:
                continue
            looked_at = time.monotonic()
            for worker in await self._newcomers():
                self.workers.append(worker)
                following[worker] = asyncio.create_task(self._follow_one(worker))
        await asyncio.gather(*following.values())
        await self._pool.close()
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*pending, return_exceptions=True)

    async def _follow_one(self, worker: str) -> None:
        while not self._closing.is_set():
            await self._news(worker)
            await asyncio.sleep(_ASK_S)

    async def _news(self, worker: str) -> None:
        ranks = {rank.name: rank for rank in self._ranks if rank.worker == worker}
        if not ranks:
            self._heard[worker] = self._now()
            return
        try:
            reply = await self._once(worker, "kdlab_rank_news", {"names": list(ranks)})
            news = from_builtins(dict[str, RankUpdate], reply)
        except Exception as error:  # of any kind: the other workers must still be polled
            if self._is_lost(worker):
                for rank in ranks.values():
                    rank.lost(f"The Dask worker at {worker} does not answer ({error}).")
            return
        self._heard[worker] = self._now()
        for name, rank in ranks.items():
            if name in news:
                rank.update(news[name])
            else:
                rank.lost(
                    f"The Dask worker at {worker} no longer has this rank: it was restarted, or "
                    "nobody asked for the rank for a minute."
                )

    async def _newcomers(self) -> list[str]:
        """Workers that joined since the last poll."""
        try:
            identity = await asyncio.wait_for(self._pool(self.address).identity(), CALL_S)
        except (OSError, TimeoutError):
            return []  # the scheduler is away; workers answer without it
        return [w for w in for_ranks(identity["workers"]) if w not in self.workers]

    async def _once(
        self, worker: str, operation: str, arguments: dict[str, object]
    ) -> object:
        """Call over a pooled connection."""
        call: Awaitable[object] = getattr(self._pool(worker), operation)(**arguments)
        return await asyncio.wait_for(call, CALL_S)

    def _is_lost(self, worker: str) -> bool:
        heard = self._heard.setdefault(worker, self._now())
        return self._now() - heard > _LOST_S
