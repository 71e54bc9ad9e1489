"""The DistilReader of EDL-Dist: feeds one student from teachers that come and go.

The I/O half; what it decides is in kdlab/papers/edl_dist/distil_reader.py.

Rule 1. Nothing is decided here. A fact arrives (labels, a free slot, a lost teacher), it
        is passed on with its time, and the instructions that come back are carried out.
Rule 2. Everything runs on one asyncio loop. No lock exists because nothing else touches
        the state.
Rule 3. A process of its own: in a thread it would take the trainer's interpreter lock and
        cost 10 to 28 % at steps of a few milliseconds. It imports no torch, but to resize images
        that are kept encoded, and those it leaves to threads.
"""

import asyncio
import json
import socket
import time
import traceback
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster import notebook_components
from kdlab.cluster.child_configs import ReaderConfig
from kdlab.cluster.coordination.recording import Recorded
from kdlab.cluster.reader.batches_under_way import BatchesUnderWay
from kdlab.cluster.reader.hand_over import HandOver
from kdlab.cluster.reader.reader_messages import (
    READER_FAILURES,
    READER_ORDERS,
    PauseReader,
    ReaderDefect,
    ReaderFailure,
    SetThresholds,
    StopReader,
    TeachersMissing,
)
from kdlab.cluster.reader.reader_wires import WAITS, WAYS, Unreachable, Unusable, Wires
from kdlab.cluster.reader.ring import Ring
from kdlab.cluster.teachers.probe import difference_of
from kdlab.cluster.wires import security
from kdlab.cluster.wires.wire import settle
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec
from kdlab.data.samples import PlannedSamples, described
from kdlab.errors import join_command
from kdlab.events.event import Event
from kdlab.events.teachers import (
    CoordinatorAway,
    CoordinatorBack,
    TeacherRequested,
    TeachersGone,
)
from kdlab.messages import plain
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Check,
    Complain,
    Deliver,
    EndCheck,
    Fail,
    GiveBack,
    Instruction,
    Instructions,
    Keep,
    Release,
    Say,
    Send,
    TakeCached,
)
from kdlab.soft_labels.label_file import GrowingLabels
from kdlab.supervision.allocator import keep_small
from kdlab.supervision.children import configured, give_way

FIGURES = (
    "volume",
    "in_flight",
    "volume_max",
    "teachers",
    "resends",
    "hedges",
    "stored_mb",
    "stability_mean",
    "credit",
    "latency_s",
    "capacity",
    "starved_s",
    *(f"bytes_per_sample_{way}" for way in WAYS),
    *WAITS,
    "served_s",
)
_TICK_S = 0.05
_FINISH_EVERY_S = 5.0  # between looks whether the label file is complete


class StudentReader:
    def __init__(self, config: ReaderConfig, samples: PlannedSamples, ring: Ring) -> None:
        self.config, self.ring = config, ring
        labels = _label_file(config, samples)
        self.batches = BatchesUnderWay(samples, config.classes, labels)
        start = config.start
        by_epoch = lru_cache(maxsize=4)(samples.sizes)  # asked for with every part
        begun = self.begun = time.monotonic()
        self.machine = DistilReader(
            config.rules,
            by_epoch,
            epochs=samples.plan.epochs,
            epoch=start.epoch,
            done=start.done,
            time=begun,
            cached=self.batches.knows,
        )
        if config.record is not None:
            self.machine = Recorded(
                self.machine,
                Path(config.record),
                epochs=samples.plan.epochs,
                epoch=start.epoch,
                done=list(start.done),
                time=begun,
                rules=plain(config.rules),
                sizes=[list(by_epoch(start.epoch + later)) for later in (0, 1)],
            ).machine
        self.answer: NDArray[np.float32] | None = None  # the one being passed on
        # Answers that are compared with others: by part, then (teacher, lease).
        self.compared: dict[Part, dict[tuple[str, int], NDArray[np.float32]]] = {}
        self.coordinator_away = False
        self.free_slots = list(range(ring.layout.slots))
        self.filled: dict[int, int] = {}  # slot -> samples, until the trainer frees it
        self.hand_over = HandOver(self._handed_over, self._spawn)
        self.background: set[asyncio.Task[None]] = set()
        self.defect: BaseException | None = None  # the last that was said

    # Carrying out

    def _collect(self) -> None:
        """Slots that the trainer has used up are facts too, and come without a message."""
        for slot in self.ring.collect():
            self.free_slots.append(slot)
            self._execute_all(
                self.machine.on_slot_free(self.filled.pop(slot), time.monotonic())
            )
        self.ring.reader_waits(not self.free_slots)

    def _do(self, told: Instructions) -> None:
        try:
            self._execute_all(told)
            self._collect()
        except Exception as error:
            # Said before another fact is handled: what was to be handed over now is missing.
            self._defect(error)
            raise

    def _execute_all(self, told: Instructions) -> None:
        for instruction in told:
            self._execute(instruction)

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case Send(part, teacher, lease):
                self._spawn(self._ask(part, teacher, lease))
            case Keep(part):
                assert self.answer is not None
                self.batches.put(part, self.answer)
            case TakeCached(part):
                self.batches.take_cached(part)
            case Deliver(epoch, batch):
                self._deliver(epoch, batch)
            case Check(part, teacher, lease, first):
                if first is not None:
                    assert self.answer is not None
                    self.compared[part] = {first: self.answer}
                self._spawn(self._ask(part, teacher, lease, check=True))
            case EndCheck(part):
                self.compared.pop(part, None)
            case Say(event):
                self._say(event)
            case Fail(unplaced, batches, why):
                self._fail(TeachersMissing(unplaced, batches, why))
            case _:
                self._spawn(self._report_to_coordinator(instruction))

    async def _report_to_coordinator(
        self, instruction: AskTeacher | Release | GiveBack | Complain
    ) -> None:
        call = self.wires.coordinator
        try:
            match instruction:
                case AskTeacher(need):
                    got = await call("extra", need=need)
                    self._say(TeacherRequested(granted=bool(got)))
                case Release(teacher, lease, need):
                    await call("release", teacher=teacher, lease=lease, need=need)
                case GiveBack(teacher, lease, after_s):
                    await asyncio.sleep(after_s)  # who is dead is gone by then
                    await call("give_back", teacher=teacher, lease=lease)
                case Complain(teacher, lease, why):
                    await call("complain", teacher=teacher, lease=lease, why=why)
        except (OSError, TimeoutError):  # it is away; _watch notices and reports
            match instruction:
                case AskTeacher():
                    self.machine.on_ask_failed()
                case Release(teacher):
                    self.machine.on_release_failed(teacher)

    def _deliver(self, epoch: int, batch: int) -> None:
        slot = self.free_slots.pop(0)
        count, left = self.batches.move_to(self.ring.slot(slot), epoch, batch)
        self.filled[slot] = count
        self.hand_over.add(slot, left)

    def _handed_over(self, slot: int) -> None:
        if self.ring.fill(slot):
            self._write(0)

    # Wires

    async def _ask(self, part: Part, teacher: str, lease: int, check: bool = False) -> None:
        """One request: every way it can end becomes one fact."""
        ids = self.batches.ids(part.epoch, part.batch)[part.start : part.stop]
        views = None
        if self._wants_views(teacher):
            begin = time.monotonic()
            views = await self.batches.views(part, keep=not check)
            self.wires.waits["views_s"] += time.monotonic() - begin
        epoch = self.batches.view_of(part.epoch)
        try:
            # A teacher that repeats what it kept would never contradict itself.
            logits = await self.wires.soft_labels(teacher, epoch, ids, views, fresh=check)
        except (Unreachable, Unusable) as error:
            self._do(
                self.machine.on_trouble(
                    teacher,
                    lease,
                    str(error),
                    unusable=isinstance(error, Unusable),
                    time=time.monotonic(),
                )
            )
            return
        if check:
            self._compare(part, (teacher, lease), logits)
            return
        self.answer = logits
        self._do(self.machine.on_answer(part, teacher, lease, time.monotonic()))
        self.answer = None

    def _wants_views(self, teacher: str) -> bool:
        """Whether this teacher gets pixels."""
        if self.config.inputs != "auto":
            return bool(self.config.inputs != "reference")
        known = self.machine.teachers.get(teacher)
        return known is not None and not known.facts.get("by_reference", True)

    def _compare(
        self, part: Part, who: tuple[str, int], logits: NDArray[np.float32]
    ) -> None:
        kept = self.compared.get(part)
        if kept is None:
            return  # it was decided meanwhile
        agrees = [w for w, other in kept.items() if not difference_of(logits, other)]
        kept.setdefault(who, logits)
        if kept[who] is logits:
            agrees.append(who)
        self._do(
            self.machine.on_compared(part, *who, agrees_with=agrees, time=time.monotonic())
        )

    def figures(self) -> dict[str, float]:
        """What the machine and its wires have counted."""
        return self.machine.figures() | self.wires.figures()

    async def _watch(self) -> None:
        """Follow the coordinator's changes."""
        news = self.wires.news(self._is_away, self.figures)
        async for given, gone, full in news:
            if self.coordinator_away:
                self.coordinator_away = False
                self._say(CoordinatorBack())
            self.machine.on_announced()
            self._do(self.machine.on_teachers(given, gone, full, time.monotonic()))

    def _is_away(self, why: str) -> None:
        if not self.coordinator_away:
            self.coordinator_away = True
            teachers = len(self.machine.teachers)
            self._say(CoordinatorAway(why=why, teachers=teachers))

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            message = json.loads(line)
            if message == 0:
                self._collect()
                continue
            match READER_ORDERS.typed(message):
                case StopReader():
                    return
                case PauseReader(paused):
                    self.machine.on_paused(paused, time.monotonic())
                case SetThresholds(lt, ut):
                    self._do(self.machine.on_thresholds(lt, ut, time.monotonic()))

    async def _look(self) -> None:
        finish_at = time.monotonic() + _FINISH_EVERY_S
        while True:
            await asyncio.sleep(_TICK_S)
            self._do(self.machine.on_tick(time.monotonic()))
            figures = self.figures() | {"served_s": time.monotonic() - self.begun}
            for place, name in enumerate(FIGURES):
                self.ring.figures[place] = figures[name]
            if time.monotonic() > finish_at:
                finish_at = time.monotonic() + _FINISH_EVERY_S
                self._spawn(asyncio.to_thread(self.batches.finish))  # hashes all of it

    # Words to the trainer

    def _say(self, event: Event) -> None:
        if isinstance(event, TeachersGone):
            address = self.config.coordinator
            event = replace(event, coordinator=address, join=join_command(address))
        self._emit(event.facts())

    def _fail(self, failure: ReaderFailure) -> None:
        self._emit(READER_FAILURES.plain(failure))

    def _emit(self, message: Mapping[str, object]) -> None:
        self._write(message)
        self.ring.message_sent()

    def _write(self, message: int | Mapping[str, object]) -> None:
        self.writer.write(json.dumps(message, default=str).encode() + b"\n")

    def _spawn(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self.background.add(task)  # asyncio itself keeps only a weak reference
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self.background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._defect(error)

    def _defect(self, error: BaseException) -> None:
        if error is not self.defect:  # else it was said where it happened
            self.defect = error
            traceback.print_exception(error)
            self._fail(ReaderDefect(repr(error)))

    async def run(self, end: socket.socket) -> None:
        """Until the trainer says stop or goes away."""
        stream, self.writer = await asyncio.open_connection(sock=end)
        self.wires = await Wires.open(self.config)
        self._spawn(self._watch())
        self._spawn(self._look())
        await self._listen(stream)
        for task in list(self.background):
            task.cancel()
        self.batches.finish()
        try:
            await self.wires.coordinator("student_gone")
        except (OSError, TimeoutError):
            return  # nobody left to tell
        await self.wires.close()


def _label_file(config: ReaderConfig, samples: PlannedSamples) -> GrowingLabels | None:
    if config.label_file is None:
        return None
    return GrowingLabels(
        Path(config.label_file.folder),
        config.label_file.meta,
        samples.train_ids(),
        config.classes,  # with inner outputs behind the logits, where these are asked for
    )


def main() -> None:
    config = configured(ReaderConfig)
    keep_small()
    give_way()
    settle()
    security.use(config.tls)
    notebook_components.accept(config.components)
    spec = construct(DataSpec, from_dict(config.samples.data, "the student's data"))
    samples = described(spec.load(), config.samples)
    ring = Ring(config.layout, config.ring_fd)
    end = socket.socket(fileno=config.socket_fd)
    end.setblocking(False)
    asyncio.run(StudentReader(config, samples, ring).run(end))


if __name__ == "__main__":
    main()
