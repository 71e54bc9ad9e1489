"""Ranks on the workers of a Dask cluster: started, told, listened to and ended from afar.

A `RankHost`, a plugin of every worker, has the processes as its children. The run asks each
worker twenty times a second for what is new: lines they said, their signs of life, whether
they live.

Run folder and data must be at the same paths on all machines (a shared file system), as the
checkpoints of EDL-Dist (section 3.4) must. Dask only carries what is rare; ranks talk to
each other by torch.distributed.
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
_NEW_S = 5.0  # between looks at which workers there are
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkerRoles:
    """What is read of how a scheduler describes a worker."""

    resources: dict[str, float] | None = None


def for_ranks(workers: object) -> list[str]:
    """Addresses of the workers that may train; teachers never do.

    Args:
        workers: by address, as the scheduler describes them.
    """
    known = from_builtins(dict[str, WorkerRoles], workers)
    roles = {worker: about.resources or {} for worker, about in known.items()}
    named = sorted(w for w, has in roles.items() if RANK in has)
    return named or sorted(w for w, has in roles.items() if TEACHER not in has)


def with_keepers(address: str, tls: Files | None) -> list[str]:
    """Addresses of all workers, each of which can keep ranks now.

    Raises:
        SchedulerUnreachable: nobody answers at the address.
        ClusterError: no worker is there, or they cannot import kdlab.
    """
    check_address(address, tls=tls)
    try:
        found = for_ranks(register_plugin(address, tls, RankHost())["workers"])
    except (OSError, ImportError, TimeoutError) as error:
        raise ClusterError(
            f"The workers of {address} cannot keep ranks: {error}. kdlab must be installed on "
            "every machine of the cluster."
        ) from error
    if not found:
        raise BadInput(
            f"The Dask scheduler at {address} has no workers that may train: teachers are "
            "never given ranks, and where some workers have the resource kdlab_rank, only "
            "those are. Start one on each machine:\n"
            f"    dask worker {address} --no-nanny --nthreads 1"
        )
    return found


async def connections(tls: Files | None) -> ConnectionPool:
    """Each worker by itself: one that does not answer must not keep the others waiting."""
    return await ConnectionPool(limit=4096, timeout=CALL_S, **secured(tls))


class HostedRank:
    """A rank on a worker. Satisfies `RankChild`; what it shows is some ms old."""

    def __init__(self, hosts: "DaskHosts", worker: str, name: str, pid: int) -> None:
        self.hosts, self.worker, self.name, self.pid = hosts, worker, name, pid
        self.machine = str(urlsplit(worker).hostname)
        self.exit_code: int | None = None
        self._alive, self._stopped = True, False
        self._words: deque[dict[str, object]] = deque()
        self._sign = Heartbeat(0, 0, 0.0)
        self._exit_report = ""

    def hear(self, news: RankUpdate) -> None:
        """In the listening thread."""
        self._words.extend(news.messages)
        generation, step, ago = news.sign
        self._sign = Heartbeat(generation, step, time.monotonic() - ago)
        self._stopped, self.exit_code = news.stopped, news.exit_code
        self._exit_report = news.exit_report
        self._alive = news.alive  # last: who sees it dead finds its words complete

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
    """The workers of a Dask cluster, as places for ranks; raises what `with_keepers` does."""

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
        self._said = "nothing"  # when it was last asked in vain
        self._heard: dict[str, float] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._listen, name="hosts", daemon=True)
        self._closing, self._up = threading.Event(), threading.Event()
        self._thread.start()
        self._up.wait(CALL_S)

    # What a group asks for

    def start(self, module: str, config: object, log: Path, pulse: Path) -> HostedRank:
        """A new rank, on the worker that has the fewest of this run."""
        alive = [w for w in self.workers if not self._is_lost(w)]
        if not alive:
            raise ClusterError(
                "All workers of the Dask cluster are lost; no rank can start."
            )
        here = [rank.worker for rank in self._ranks if rank.alive()]
        name = f"{log.stem}@{log.parent}"
        for worker in sorted(alive, key=lambda w: (here.count(w), self.workers.index(w))):
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
            # It may have started after all; nobody would ever tell it anything.
            self._run(
                self._once(worker, "kdlab_rank_end", {"name": name, "kill": False})
            ).add_done_callback(lambda ended: ended.exception())
        raise ClusterError(
            f"None of the Dask workers {', '.join(alive)} started a rank. The last one said: "
            f"{self._said}. All machines need the run folder at the same path, writable."
        )

    def meeting(self, first: HostedRank) -> str:
        """Where a generation meets: at the host of its first rank."""
        said = self.ask(first.worker, "kdlab_rank_port") or ("127.0.0.1", 0)
        host, port = from_builtins(tuple[str, int], said)
        return f"tcp://{host}:{port}"

    def forget(self, rank: HostedRank) -> None:
        if rank in self._ranks:
            self._ranks.remove(rank)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(2 * CALL_S)

    def ask(self, worker: str, operation: str, **arguments: object) -> object:
        """One call to a worker; None when it does not answer."""
        try:
            return self._run(self._once(worker, operation, arguments)).result(CALL_S + 1)
        except (OSError, TimeoutError) as error:
            self._said = f"{type(error).__name__}: {error}"
            return None  # whoever asked sees soon that the worker is lost

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
            said = await self._once(worker, "kdlab_rank_news", {"names": list(ranks)})
            news = from_builtins(dict[str, RankUpdate], said)
        except Exception as error:  # of whatever kind: the others must go on being heard
            if self._is_lost(worker):
                for rank in ranks.values():
                    rank.lost(f"The Dask worker at {worker} does not answer ({error}).")
            return
        self._heard[worker] = self._now()
        for name, rank in ranks.items():
            if name in news:
                rank.hear(news[name])
            else:
                rank.lost(
                    f"The Dask worker at {worker} has no such rank any more: it was started "
                    "again, or nobody asked for the rank for a minute."
                )

    async def _newcomers(self) -> list[str]:
        """Workers that joined since the last look."""
        try:
            told = await asyncio.wait_for(self._pool(self.address).identity(), CALL_S)
        except (OSError, TimeoutError):
            return []  # the scheduler is away; workers answer without it
        return [w for w in for_ranks(told["workers"]) if w not in self.workers]

    async def _once(
        self, worker: str, operation: str, arguments: dict[str, object]
    ) -> object:
        """Over a connection that is kept."""
        call: Awaitable[object] = getattr(self._pool(worker), operation)(**arguments)
        return await asyncio.wait_for(call, CALL_S)

    def _is_lost(self, worker: str) -> bool:
        heard = self._heard.setdefault(worker, self._now())
        return self._now() - heard > _LOST_S
