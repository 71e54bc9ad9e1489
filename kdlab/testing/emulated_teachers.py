"""The process of all emulated teachers of a pool, each a separate Dask worker.

They join, renew their leases and answer like real teachers, one by one and over the same
connections; only the model is missing.
"""

import asyncio
import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import dask
import numpy as np
from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

from kdlab.cluster.child_configs import EmulatedTeachersConfig
from kdlab.cluster.coordination.coordinator_messages import (
    Deployed,
    Refusal,
    Welcome,
)
from kdlab.cluster.transport import security
from kdlab.cluster.transport.frames import Arrays
from kdlab.cluster.transport.label_wire import Reply, listen, port_of
from kdlab.cluster.transport.messages import LabelRequest, RequestTimes, encode, samples_in
from kdlab.cluster.transport.roles import TEACHER, TeacherWorker
from kdlab.cluster.transport.wire import CALL_S, call_coordinator, configure_dask
from kdlab.codec import from_builtins, to_dict
from kdlab.papers.edl_dist.teacher_info import TeacherInfo
from kdlab.simulate.mishaps import Mishaps, Move, TimedTeacher
from kdlab.supervision.children import announce, configured

RENEWALS: deque[float] = deque(maxlen=100_000)  # s, from request to reply
_LARGEST_REQUEST = 2**30  # bytes
_POLL_S = 0.1  # between two checks of a teacher that hangs
_AT_ONCE = 32  # workers that connect at the same time


class EmulatedTeacher(TimedTeacher, WorkerPlugin):
    name = "kdlab-teacher"

    def __init__(
        self,
        number: int,
        t_t: float,
        config: EmulatedTeachersConfig,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(t_t, config, random.Random(config.seed * 100_003 + number))
        self.number, self.config, self.asked = number, config, asked
        self.alive = False  # until it has a connection
        self.answered = 0
        self.lies = 0.0  # share of its answers that are wrong
        self.wire: asyncio.Server | None = None

    async def setup(self, worker: Worker) -> None:
        self.worker = worker
        if self.wire is None:
            self.wire = await listen(self.config.host, self.infer, lambda: _LARGEST_REQUEST)
            self.alive = True
        self.renewing = asyncio.create_task(self._serve())

    async def teardown(self, worker: Worker) -> None:
        self.renewing.cancel()

    def close(self) -> None:
        self.alive = False
        if self.wire is not None:
            self.wire.close()

    async def ask(self, operation: str, **arguments: object) -> object:
        return await call_coordinator(
            self.worker.scheduler,
            operation,
            CALL_S,
            address=self.worker.address,
            **arguments,
        )

    async def _join(self) -> None:
        assert self.wire is not None
        welcome = from_builtins(Welcome, await self.ask("hello"))
        deployment = from_builtins(Deployed, welcome.deployment)
        self.classes, self.renew_s = deployment.num_classes, welcome.renew_s
        best, least = self.config.sizes(self.t_t, deployment.batch)
        facts = TeacherInfo(
            name=f"emulated-{self.number}",
            pid=os.getpid(),
            device="emulated",
            threads=0,
            best_batch=best,
            min_batch=least,
            by_reference=True,
            wire_port=port_of(self.wire),
        )
        answered = await self.ask(
            "ready",
            fingerprint=deployment.fingerprint,
            t_t=self.t_t / self.times,
            batch_s=best / self.t_t,
            answer=[],
            facts=to_dict(facts),
        )
        if answered:
            why = from_builtins(Refusal, answered).refused
            raise ConnectionError(f"emulated teacher {self.number} was refused: {why}")

    async def _serve(self) -> None:
        """Join, then renew; join again after any failure."""
        known = False
        while True:
            try:
                if not known:
                    await self._join()
                    # Spread over the interval, like teachers that started one by one.
                    await asyncio.sleep(self.renew_s * self.chance.random())
                    due = time.monotonic()
                while self.hangs_until > time.monotonic():
                    await asyncio.sleep(_POLL_S)
                begin = time.monotonic()
                news = {"answered": self.answered}
                known = bool(await self.ask("renew", t_t=self.t_t / self.times, news=news))
                RENEWALS.append(time.monotonic() - begin)
                due = max(due + self.renew_s, time.monotonic())
                await asyncio.sleep(due - time.monotonic())  # one message every renew_s
            except (OSError, TimeoutError):
                known = False
                await asyncio.sleep(0.5)  # between tries

    def infer(self, asked: dict[str, object], inputs: Arrays, reply: Reply) -> None:
        """Reply with zeros after the service time of all earlier requests and this one."""
        self.asked()
        count, wanted = samples_in(inputs), from_builtins(LabelRequest, asked)
        loop = asyncio.get_running_loop()
        arrived = loop.time() + self.config.latency_s
        begin = self.start_request(count, arrived)
        took = RequestTimes(queued_s=begin - arrived, computed_s=self.free_at - begin)
        back_at = self.free_at + self.config.latency_s
        loop.call_at(back_at, self._answer, count, wanted, took, reply)

    def _answer(
        self, count: int, asked: LabelRequest, took: RequestTimes, reply: Reply
    ) -> None:
        loop = asyncio.get_running_loop()
        if not self.alive:
            return  # nobody is there to answer
        if self.hangs_until > loop.time():
            loop.call_later(_POLL_S, self._answer, count, asked, took, reply)
            return
        self.answered += 1
        logits = np.zeros((count, self.classes), np.float32)
        if self.lies and self.chance.random() < self.lies:
            logits[:, 0] = 5.0
        answer = encode(logits, asked.replies, asked.top_k)
        reply(took.with_times(answer, "emulated"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationOrder:
    """An order of the parent process."""

    moves: tuple[Move, ...] = ()  # times count from now
    lie: tuple[int, float] | None = None  # (teacher, share of wrong answers from now on)
    figures: bool = False  # report the seconds of renewals, and the capacities


class Host(Mishaps[EmulatedTeacher]):
    """All emulated teachers: starts and ends them, or makes them lie, by orders and a trace."""

    def __init__(self, config: EmulatedTeachersConfig) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(random.Random(config.seed), loop.time, loop.call_later)
        self.config, self.to_come = config, config.moves
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.teachers: dict[int, EmulatedTeacher] = {}
        self.started = 0
        self.limit = asyncio.Semaphore(_AT_ONCE)

    def join(self, rate: float) -> None:
        number, self.started = self.started, self.started + 1
        self.tasks[number] = asyncio.create_task(self._live(number, rate))

    def join_one(self) -> None:
        self.join(self.config.t_t)

    def begin(self) -> None:
        """Begin the trace at the first request."""
        moves, self.to_come = self.to_come, ()
        self.plan(moves)

    def warn(self, victim: EmulatedTeacher) -> None:
        self.leaving = asyncio.create_task(victim.ask("leave"))

    def end(self, victim: EmulatedTeacher) -> None:
        """End a teacher without notice, as if its machine had vanished."""
        self.tasks.pop(victim.number).cancel()

    async def _live(self, number: int, rate: float) -> None:
        teacher = EmulatedTeacher(number, rate, self.config, self.begin)
        self.teachers[number] = teacher
        port = 0
        try:
            while True:
                worker = TeacherWorker(
                    self.config.scheduler,
                    nthreads=1,
                    name=f"emulated-{number}",
                    host=security.listen_address(self.config.host, port),
                    dashboard=False,
                    local_directory=self.config.scratch,
                    memory_limit=0,
                    resources={TEACHER: 1},
                    plugins=(teacher,),
                )
                try:
                    async with self.limit:
                        await worker
                    self.note_capacity()
                    port = urlsplit(worker.address).port or 0
                    await worker.finished()
                except (OSError, TimeoutError, RuntimeError):
                    port = 0
                finally:
                    await worker.close()
                await asyncio.sleep(self.chance.random())  # then the scheduler again
        finally:
            teacher.close()
            self.teachers.pop(number, None)

    def execute(self, order: EmulationOrder) -> None:
        self.plan(order.moves)
        if order.lie is not None:
            number, share = order.lie
            self.teachers[number].lies = share
        if order.figures:
            self.report()

    def report(self) -> None:
        """Announce the seconds of renewals since the last report, for benchmarks."""
        taken = [RENEWALS.popleft() for _ in range(len(RENEWALS))]
        alive = [f"emulated-{n}" for n in sorted(self.teachers)]
        announce(renewals=sorted(taken), alive=alive, capacities=self.capacities)


async def main() -> None:
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[EmulationOrder] = asyncio.Queue()

    def receive(order: dict[str, object]) -> None:
        loop.call_soon_threadsafe(orders.put_nowait, from_builtins(EmulationOrder, order))

    config = configured(EmulatedTeachersConfig, receive)
    configure_dask()
    security.enable_tls(config.tls)
    # Each worker would watch this one process: 614 of them took 60 % of its time.
    dask.config.set({"distributed.admin.system-monitor.interval": "1h"})
    host = Host(config)
    for rate in config.rates:
        host.join(rate)
    # A signal stands for a machine of the spot market: it vanishes, and another comes.
    loop.add_signal_handler(signal.SIGUSR1, host.plan, (Move(lose=1, join=1),))
    while True:
        host.execute(await orders.get())


if __name__ == "__main__":
    asyncio.run(main())
