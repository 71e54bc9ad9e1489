"""Event loop of every reader, real or emulated, between its pure machine and its connections.

Facts go into the machine with their time. Of the instructions that come out, this loop carries out
those to teachers and coordinator; subclasses handle batches, events and failures.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster.reader.pool_connection import PoolConnection, Unreachable, Unusable
from kdlab.cluster.teachers.probe import difference_of
from kdlab.codec import to_builtins
from kdlab.events.teachers import TeacherRequested
from kdlab.papers.edl_dist import reader_instructions as tell
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_instructions import Instructions

_TICK_S = 0.05


class ReaderLoop(ABC):
    machine: DistilReader
    wires: PoolConnection

    def __init__(self) -> None:
        self.answer: NDArray[np.float32] | None = None  # the one being handled
        self.computed_by = ""  # the engine of that answer
        # Answers to compare: by part, then by (teacher, lease).
        self.compared: dict[Part, dict[tuple[str, int], NDArray[np.float32]]] = {}
        self.background: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def soft_labels(
        self, part: Part, teacher: str, *, check: bool
    ) -> NDArray[np.float32]:
        """Ask a teacher for a part; raises what `PoolConnection.soft_labels` does."""

    @abstractmethod
    def failed_task(self, error: BaseException) -> None:
        """Handle an error that ended a background task."""

    # Carrying out

    def do(self, instructions: Instructions) -> None:
        for instruction in instructions:
            self.execute(instruction)

    def execute(self, instruction: tell.ReaderInstruction) -> None:
        match instruction:
            case tell.Send(part, teacher, lease):
                self.spawn(self._ask(part, teacher, lease))
            case tell.Check(part, teacher, lease, first):
                if first is not None:
                    assert self.answer is not None
                    self.compared[part] = {first: self.answer}
                self.spawn(self._ask(part, teacher, lease, check=True))
            case tell.EndCheck(part):
                self.compared.pop(part, None)
            case tell.AskTeacher() | tell.Need() | tell.Release():
                self.spawn(self._notify_coordinator(instruction))
            case tell.ReturnTeacher() | tell.ReportBadTeacher():
                self.spawn(self._notify_coordinator(instruction))

    async def _notify_coordinator(self, instruction: tell.ToCoordinator) -> None:
        if isinstance(instruction, tell.ReturnTeacher):
            await asyncio.sleep(instruction.after_s)  # by then a dead teacher is dropped
        try:
            message = to_builtins(instruction)
            granted = await self.wires.coordinator("tell", instruction=message)
        except (OSError, TimeoutError):  # no answer; `watch` notices and reports it
            match instruction:
                case tell.AskTeacher():
                    self.machine.on_ask_failed()
                case tell.Need():
                    self.machine.on_need_failed()
                case tell.Release(teacher):
                    self.machine.on_release_failed(teacher)
        else:
            if isinstance(instruction, tell.AskTeacher):
                self.do([tell.EmitEvent(TeacherRequested(granted=bool(granted)))])

    async def _ask(self, part: Part, teacher: str, lease: int, check: bool = False) -> None:
        """Send one request; each outcome becomes one event of the machine."""
        machine = self.machine
        try:
            logits = await self.soft_labels(part, teacher, check=check)
        except (Unreachable, Unusable) as error:
            bad, now = isinstance(error, Unusable), time.monotonic()
            self.do(machine.on_trouble(teacher, lease, str(error), unusable=bad, time=now))
            return
        if check:
            self._compare(part, (teacher, lease), logits)
            return
        self.answer, self.computed_by = logits, self.wires.engines.get(teacher, "")
        self.do(machine.on_answer(part, teacher, lease, time.monotonic()))
        self.answer = None

    def _compare(
        self, part: Part, who: tuple[str, int], logits: NDArray[np.float32]
    ) -> None:
        answers = self.compared.get(part)
        if answers is None:
            return  # it was decided meanwhile
        agrees = [w for w, other in answers.items() if not difference_of(logits, other)]
        answers.setdefault(who, logits)
        if answers[who] is logits:
            agrees.append(who)
        self.do(
            self.machine.on_compared(part, *who, agrees_with=agrees, time=time.monotonic())
        )

    async def watch(
        self,
        away: Callable[[str], None] = lambda why: None,
        back: Callable[[], None] = lambda: None,
        figures: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Follow the coordinator; calls `away` and `back` as it stops or starts to answer."""
        async for reply in self.wires.updates(away, figures):
            back()
            if reply.announced or not self.machine.flow.announced:
                self.machine.on_announced()
            update = (reply.teachers, reply.gone, reply.full)
            self.do(self.machine.on_teachers(*update, time.monotonic()))

    async def keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.tick()

    def tick(self) -> None:
        self.do(self.machine.on_tick(time.monotonic()))

    def spawn(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)  # asyncio keeps only a weak reference
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self.background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed_task(error)
