"""The process that holds emulated students: real readers' decisions and wires, no training.

Each has the DistilReader machine and connections of its own, asks for made-up sample ids,
and "trains" by waiting for the time a step would take. For measuring a pool with many
students on one machine.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace

import numpy as np

from kdlab.cluster.child_configs import EmulatedStudentsConfig
from kdlab.cluster.reader.reader_wires import Unreachable, Unusable, Wires
from kdlab.cluster.wires import security
from kdlab.cluster.wires.wire import settle
from kdlab.events.teachers import TeacherLied
from kdlab.messages import typed
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.hybrid_schedule import default_thresholds
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Check,
    Complain,
    Deliver,
    Fail,
    GiveBack,
    Instructions,
    Release,
    Say,
    Send,
)
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.supervision.children import announce, configured

_TICK_S = 0.05  # as a real reader


@dataclass
class EmulatedStudent:
    name: str
    config: EmulatedStudentsConfig
    wires: Wires
    steps: int = 0
    slots: int = 0
    failed: str = ""
    answers: Counter[str] = field(default_factory=Counter)  # by the teacher's name
    lied_at: int | None = None  # answers of a liar when it was found
    lied_of: int = 0  # and of all teachers together
    again: int = 0  # samples of a liar that were sent again
    asked: list[float] = field(default_factory=list)  # for one more teacher, when
    released: list[float] = field(default_factory=list)
    delivered: Counter[tuple[int, int]] = field(default_factory=Counter)
    ended: deque[float] = field(default_factory=lambda: deque(maxlen=100_000))  # of steps
    said: dict[tuple[Part, tuple[str, int]], bool] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    background: set["asyncio.Task[object]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        config, batch = self.config, self.config.batch
        sizes = [batch] * config.batches
        lt, ut = default_thresholds(batch)
        self.machine = DistilReader(
            typed(Rules, {"t_s": config.t_s, "lt": lt, "ut": ut, **config.rules}),
            lambda epoch: sizes,
            epochs=1,
            time=time.monotonic(),
        )

    def do(self, told: Instructions) -> None:
        for instruction in told:
            match instruction:
                case Send(part, teacher, lease):
                    self.spawn(self.ask(part, teacher, lease))
                case Check(part, teacher, lease, first):
                    self.spawn(self.ask(part, teacher, lease, check=first or ()))
                case Deliver(epoch, batch):
                    self.delivered[epoch, batch] += 1
                    self.slots += 1
                    self.arrived.set()
                case AskTeacher(need):
                    self.asked.append(time.monotonic())
                    self.tell("extra", need=need)
                case Release(teacher, lease, need):
                    self.released.append(time.monotonic())
                    self.tell("release", teacher=teacher, lease=lease, need=need)
                case GiveBack(teacher, lease, _):
                    self.tell("give_back", teacher=teacher, lease=lease)
                case Complain(teacher, lease, why):
                    self.tell("complain", teacher=teacher, lease=lease, why=why)
                case Say(TeacherLied(teacher=teacher, sent_again=again)):
                    self.lied_at, self.again = self.answers[teacher], again
                    self.lied_of = self.answers.total()
                case Fail(_, _, why):
                    self.failed = f"no teacher: {why}"

    def tell(self, operation: str, **about: object) -> None:
        self.spawn(self.wires.coordinator(operation, **about))

    def spawn(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.finished)

    def finished(self, task: "asyncio.Task[object]") -> None:
        self.background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError | TimeoutError):
            self.failed = repr(error)

    async def ask(
        self,
        part: Part,
        teacher: str,
        lease: int,
        check: tuple[str, int] | tuple[()] | None = None,
    ) -> None:
        """An answer; of a check, whether it is the zeros that all honest ones give."""
        ids = np.arange(part.start, part.stop, dtype=np.int64)
        try:
            labels = await self.wires.soft_labels(teacher, part.epoch, ids, None)
        except (Unreachable, Unusable) as error:
            bad = isinstance(error, Unusable)
            now = time.monotonic()
            self.do(
                self.machine.on_trouble(teacher, lease, str(error), unusable=bad, time=now)
            )
            return
        me, now = (teacher, lease), time.monotonic()
        lied = bool(labels.any())
        if check is None:
            known = self.machine.teachers.get(teacher)
            self.answers[known.name if known else teacher] += 1
            self.said[part, me] = lied
            self.do(self.machine.on_answer(part, teacher, lease, now))
        else:
            self.said.setdefault((part, me), lied)
            agrees = [
                who for (p, who), other in self.said.items() if p == part and other == lied
            ]
            self.do(self.machine.on_compared(part, *me, agrees_with=agrees, time=now))
        if part not in self.machine.check.cases:
            self.said = {key: v for key, v in self.said.items() if key[0] != part}

    async def watch(self) -> None:
        async for given, gone, full in self.wires.news():
            self.machine.on_announced()
            self.do(self.machine.on_teachers(given, gone, full, time.monotonic()))

    async def look(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.do(self.machine.on_tick(time.monotonic()))

    async def train(self) -> None:
        step_s = self.config.batch / self.config.t_s
        due = 0.0
        while True:
            while not self.slots:
                self.arrived.clear()
                await self.arrived.wait()
            due = max(due + step_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())  # the step itself
            self.slots -= 1
            self.steps += 1
            self.ended.append(time.monotonic())
            self.do(self.machine.on_slot_free(self.config.batch, time.monotonic()))


def _lost(student: EmulatedStudent) -> int:
    """Batches that were passed over: all before the newest but those under way."""
    got = {batch for _, batch in student.delivered}
    under_way = {b for _, b in student.machine.batches.missing}
    ready = {b for _, b in student.machine.batches.complete()}
    newest = max(got, default=0)
    return len(set(range(newest)) - got - under_way - ready)


async def main() -> None:
    asked: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear(order: dict[str, object]) -> None:
        loop.call_soon_threadsafe(asked.put_nowait, order)

    config = configured(EmulatedStudentsConfig, hear)
    settle()
    security.use(config.tls)
    students = []
    for number in range(config.students):
        own = replace(config, student=f"emulated-student-{number}")
        student = EmulatedStudent(own.student, own, await Wires.open(own))
        students.append(student)
        for work in (student.watch(), student.look(), student.train()):
            student.spawn(work)
    announce(students=len(students))
    while True:
        await asked.get()
        announce(
            time=time.monotonic(),
            steps=[s.steps for s in students],
            teachers=[len(s.machine.teachers) for s in students],
            connections=sum(s.wires.connections() for s in students),
            failed=[s.failed for s in students if s.failed],
            volume_max=max(s.machine.volume_max / s.machine.room_max for s in students),
            held=[s.machine.supply.capacity for s in students],
            waited_s=[s.machine.supply.waited_s for s in students],
            asked=[s.asked for s in students],
            released=[s.released for s in students],
            ended=[list(s.ended) for s in students],
            lost=sum(_lost(s) for s in students),
            repeated=sum(n - 1 for s in students for n in s.delivered.values()),
            resends=sum(s.machine.ledger.resends for s in students),
            hedges=sum(s.machine.ledger.hedges for s in students),
            lied_at=[s.lied_at for s in students],
            again=[s.again for s in students],
            lied_of=[s.lied_of for s in students],
        )


if __name__ == "__main__":
    asyncio.run(main())
