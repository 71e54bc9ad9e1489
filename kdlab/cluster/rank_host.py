"""Ranks beside a Dask worker: its children, which a remote run polls (hosted_ranks.py).

A host that is not polled for a while ends its ranks, because their run is gone.
"""

import asyncio
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from distributed import Worker, WorkerPlugin

from kdlab.codec import to_builtins
from kdlab.supervision.children import Child, StartChild

# Without a poll; then a host ends a rank, before its run counts the host as lost and starts others.
_UNASKED_S = 10.0
_WATCH_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUpdate:
    """State of a rank, and its messages since the last poll."""

    alive: bool
    messages: tuple[dict[str, object], ...]
    exit_code: int | None
    stopped: bool
    sign: tuple[int, int, float]  # heartbeat: generation, step, seconds since
    exit_report: str


class RankHost(WorkerPlugin):
    """Runs ranks on a Dask worker. Registered by the first run that needs it."""

    name = "kdlab-rank-keeper"
    idempotent = True  # another run's must not replace it and its ranks

    def __init__(self, start: StartChild = Child) -> None:
        self._start_rank = start

    def setup(self, worker: Worker) -> None:
        self.ranks: dict[str, Child] = {}
        self.asked: dict[str, float] = {}
        self.host = urlsplit(worker.address).hostname or "127.0.0.1"
        worker.handlers |= {
            "kdlab_rank_start": self.start,
            "kdlab_rank_send": self.send,
            "kdlab_rank_end": self.end,
            "kdlab_rank_news": self.news,
            "kdlab_rank_port": self.port,
        }
        self._watch = asyncio.create_task(self._watch_ranks())

    def teardown(self, worker: Worker) -> None:
        self._watch.cancel()
        for name in list(self.ranks):
            self._end(name)

    def start(
        self, name: str, module: str, config: dict[str, object], log: str, pulse: str
    ) -> int:
        """Start a rank; returns its pid."""
        # Gloo listens on one interface: that of this worker's address.
        environment = {}
        if (interface := interface_of(self.host)) is not None:
            environment["GLOO_SOCKET_IFNAME"] = interface
        rank = self._start_rank(
            module, config, Path(log), Path(pulse), environment=environment
        )
        self.ranks[name], self.asked[name] = rank, time.monotonic()
        return rank.pid

    def send(self, name: str, order: dict[str, object]) -> bool:
        rank = self.ranks.get(name)
        return rank is not None and rank.send(**order)

    async def end(self, name: str, kill: bool) -> None:  # by name only
        rank = self.ranks.get(name)
        if rank is None:
            return
        if kill:
            rank.kill()
        else:
            await asyncio.to_thread(self._end, name)

    def _end(self, name: str) -> None:
        self.ranks.pop(name).stop()

    def news(self, names: list[str]) -> dict[str, object]:
        """`RankUpdate` of each of these ranks that this host has, by name."""
        updates: dict[str, object] = {}
        for name in names:
            rank = self.ranks.get(name)
            if rank is None:
                continue
            self.asked[name] = time.monotonic()
            alive = rank.alive()  # before reading, so that its last messages are read
            sign = rank.sign()
            news = RankUpdate(
                alive=alive,
                messages=tuple(rank.messages()),
                exit_code=rank.exit_code,
                stopped=alive and rank.is_stopped(),
                sign=(sign.generation, sign.step, time.monotonic() - sign.time),
                exit_report="" if alive else rank.exit_report("ended"),
            )
            updates[name] = to_builtins(news)
        return updates

    def port(self) -> tuple[str, int]:
        """Address for the rendezvous of a generation: this host, and a free port."""
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            return self.host, int(probe.getsockname()[1])

    async def _watch_ranks(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            await self.end_forgotten(time.monotonic())

    async def end_forgotten(self, now: float) -> None:
        """End ranks that no run has polled."""
        for name, asked in list(self.asked.items()):
            if name in self.ranks and now - asked > _UNASKED_S:
                await asyncio.to_thread(self._end, name)


def interface_of(host: str) -> str | None:
    """Name of this machine's network interface with this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == host for address in addresses):
            return str(name)
    return "lo" if host.startswith("127.") else None
