"""The process of emulated students: decisions and connections of real readers, no training.

Each has its own DistilReader machine and connections, asks for made-up sample ids, and "trains" by
waiting for the time of a step. It serves to measure a pool with many students on one machine.
"""

import asyncio
import time
from collections import Counter, deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster.child_configs import EmulatedStudentsConfig
from kdlab.cluster.reader.pool_connection import PoolConnection
from kdlab.cluster.reader.reader_loop import ReaderLoop
from kdlab.cluster.transport import security
from kdlab.cluster.transport.wire import configure_dask
from kdlab.events.teachers import LabelsDisagree
from kdlab.papers.edl_dist import reader_instructions as tell
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.supervision.children import announce, configured


class EmulatedStudent(ReaderLoop):
    def __init__(
        self, name: str, config: EmulatedStudentsConfig, wires: PoolConnection
    ) -> None:
        super().__init__()
        self.name, self.config, self.wires = name, config, wires
        self.steps = self.slots = 0
        self.failed = ""
        self.answers: Counter[str] = Counter()  # by the teacher's name
        self.lied_at: int | None = None  # answers of a wrong teacher when it was found out
        self.lied_of = 0  # answers of all teachers at that time
        self.asked: list[float] = []  # times of requests for one more teacher
        self.released: list[float] = []  # times of releases
        self.delivered: Counter[tuple[int, int]] = Counter()
        self.ended = deque[float](maxlen=100_000)  # times of steps
        self.arrived = asyncio.Event()
        sizes = [config.batch] * config.batches
        now = time.monotonic()
        self.machine = DistilReader(config.rules, lambda epoch: sizes, epochs=1, time=now)

    def execute(self, instruction: tell.ReaderInstruction) -> None:
        match instruction:
            case tell.AskTeacher():
                self.asked.append(time.monotonic())
            case tell.Release():
                self.released.append(time.monotonic())
            case tell.Deliver(epoch, batch):
                self.delivered[epoch, batch] += 1
                self.slots += 1
                self.arrived.set()
            case tell.EmitEvent(LabelsDisagree(teacher=teacher)):
                self.lied_at = self.answers[teacher]
                self.lied_of = self.answers.total()
            case tell.Fail(_, _, why):
                self.failed = f"no teacher: {why}"
        super().execute(instruction)

    async def soft_labels(
        self, part: Part, teacher: str, *, check: bool
    ) -> NDArray[np.float32]:
        ids = np.arange(part.start, part.stop, dtype=np.int64)
        labels = await self.wires.soft_labels(teacher, part.epoch, ids, None, fresh=check)
        known = self.machine.teachers.get(teacher)
        self.answers[known.name if known else teacher] += not check
        return labels

    def failed_task(self, error: BaseException) -> None:
        if not isinstance(error, OSError | TimeoutError):
            self.failed = repr(error)

    async def train(self) -> None:
        step_s, due = self.config.batch / self.config.rules.t_s, 0.0
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
    """Number of lost batches: all before the newest but those under way."""
    got = {batch for _, batch in student.delivered}
    under_way = {b for _, b in student.machine.batches.missing}
    ready = {b for _, b in student.machine.batches.complete()}
    newest = max(got, default=0)
    return len(set(range(newest)) - got - under_way - ready)


async def main() -> None:
    requests: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def receive(order: dict[str, object]) -> None:
        loop.call_soon_threadsafe(requests.put_nowait, order)

    config = configured(EmulatedStudentsConfig, receive)
    configure_dask()
    security.enable_tls(config.tls)
    students = []
    for number in range(config.students):
        settings = replace(config, student=f"emulated-student-{number}")
        wires = await PoolConnection.open(settings)
        student = EmulatedStudent(settings.student, settings, wires)
        students.append(student)
        for work in (student.watch(), student.keep_ticking(), student.train()):
            student.spawn(work)
    announce(students=len(students))
    while True:
        await requests.get()
        flows = [s.machine.flow for s in students]
        announce(
            time=time.monotonic(),
            steps=[s.steps for s in students],
            teachers=[len(s.machine.teachers) for s in students],
            connections=sum(s.wires.connections() for s in students),
            failed=[s.failed for s in students if s.failed],
            held=[flow.supply.capacity for flow in flows],
            waited_s=[flow.supply.starved.waited_s for flow in flows],
            asked=[s.asked for s in students],
            released=[s.released for s in students],
            ended=[list(s.ended) for s in students],
            lost=sum(_lost(s) for s in students),
            repeated=sum(n - 1 for s in students for n in s.delivered.values()),
            resends=sum(s.machine.ledger.resends for s in students),
            hedges=sum(s.machine.ledger.hedges for s in students),
        )


if __name__ == "__main__":
    asyncio.run(main())
