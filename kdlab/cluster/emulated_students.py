"""The process that holds emulated students: real readers' decisions and wires, no training.

Each has the DistilReader machine and connections of its own, asks for made-up sample ids,
and "trains" by waiting for the time a step would take. For measuring a pool with many
students on one machine.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kdlab.cluster.children import announce, configured
from kdlab.cluster.reader_wires import Unreachable, Unusable, Wires
from kdlab.cluster.wire import settle
from kdlab.papers.edl_dist.distil_reader import DistilReader, Rules
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Deliver,
    Fail,
    GiveBack,
    Instructions,
    Release,
    Send,
)

_LOOK_S = 0.25


@dataclass
class EmulatedStudent:
    name: str
    config: dict[str, Any]
    wires: Wires
    steps: int = 0
    slots: int = 0
    failed: str = ""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    background: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        config, batch = self.config, self.config["batch"]
        sizes = [batch] * config["batches"]
        self.machine = DistilReader(
            Rules(t_s=config["t_s"], lt=4 * batch, ut=16 * batch, **config["rules"]),
            lambda epoch: sizes,
            epochs=1,
            time=time.monotonic(),
        )

    def do(self, told: Instructions) -> None:
        for instruction in told:
            match instruction:
                case Send(part, teacher, lease):
                    self.spawn(self.ask(part, teacher, lease))
                case Deliver():
                    self.slots += 1
                    self.arrived.set()
                case AskTeacher():
                    self.spawn(self.wires.coordinator("extra"))
                case Release(teacher):
                    self.spawn(self.wires.coordinator("release", teacher=teacher))
                case GiveBack(teacher, lease, _):
                    self.spawn(
                        self.wires.coordinator("give_back", teacher=teacher, lease=lease)
                    )
                case Fail(_, _, why):
                    self.failed = f"no teacher: {why}"

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.finished)

    def finished(self, task: "asyncio.Task[None]") -> None:
        self.background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed = repr(error)

    async def ask(self, part: Part, teacher: str, lease: int) -> None:
        ids = np.arange(part.start, part.stop, dtype=np.int64)
        try:
            await self.wires.soft_labels(teacher, part.epoch, ids, None)
        except (Unreachable, Unusable) as error:
            bad = isinstance(error, Unusable)
            now = time.monotonic()
            self.do(
                self.machine.on_trouble(teacher, lease, str(error), unusable=bad, time=now)
            )
            return
        self.do(self.machine.on_answer(part, teacher, lease, time.monotonic()))

    async def watch(self) -> None:
        async for given, gone, full in self.wires.news(self.config["t_s"], None):
            self.machine.on_announced()
            self.do(self.machine.on_teachers(given, gone, full, time.monotonic()))

    async def look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.do(self.machine.on_look(time.monotonic()))

    async def train(self) -> None:
        step_s = self.config["batch"] / self.config["t_s"]
        due = 0.0
        while True:
            while not self.slots:
                self.arrived.clear()
                await self.arrived.wait()
            due = max(due + step_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())  # the step itself
            self.slots -= 1
            self.steps += 1
            self.do(self.machine.on_slot_free(self.config["batch"], time.monotonic()))


async def main() -> None:
    asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear(order: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(asked.put_nowait, order)

    config = configured(hear)
    settle()
    students = []
    for number in range(config["students"]):
        own = config | {"student": f"emulated-student-{number}"}
        student = EmulatedStudent(own["student"], own, await Wires.open(own))
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
            volume_max=max(s.machine.volume_max / s.machine.rules.ut for s in students),
        )


if __name__ == "__main__":
    asyncio.run(main())
