"""The DistilReader of EDL-Dist: feeds one student from teachers that come and go.

The I/O half; its decisions are in kdlab/papers/edl_dist/distil_reader.py.

Rule 1. Nothing is decided here. A fact arrives (labels, a free slot, a lost teacher), it
        is passed on with its time, and the instructions that come back are carried out.
Rule 2. Everything runs on one asyncio loop. No lock exists because nothing else touches
        the state.
Rule 3. It is a separate process: as a thread it would take the trainer's interpreter lock and
        cost 10 to 28 % at steps of a few milliseconds. It imports torch only to resize images
        that are stored encoded, and does that in threads.
"""

import asyncio
import json
import socket
import time
import traceback
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdlab.cluster import notebook_components
from kdlab.cluster.child_configs import ReaderConfig
from kdlab.cluster.coordination.recording import Recorded
from kdlab.cluster.reader.batches_under_way import BatchesUnderWay, HandOver
from kdlab.cluster.reader.pool_connection import WAITS, WAYS, PoolConnection
from kdlab.cluster.reader.reader_loop import ReaderLoop
from kdlab.cluster.reader.ring import (
    PauseReader,
    ReaderDefect,
    ReaderOrder,
    Ring,
    SetThresholds,
    StopReader,
)
from kdlab.cluster.transport import security
from kdlab.cluster.transport.wire import configure_dask, refuse_pickles
from kdlab.codec import from_json, to_builtins
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec
from kdlab.data.samples import PlannedSamples, described
from kdlab.errors import join_command
from kdlab.events.event import Event
from kdlab.events.teachers import AllTeachersLost, CoordinatorAway, CoordinatorBack
from kdlab.events.training import LabelsStored
from kdlab.models.memory import keep_small
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.in_flight import Part
from kdlab.papers.edl_dist.reader_instructions import (
    Deliver,
    EmitEvent,
    Fail,
    Instructions,
    Keep,
    ReaderFailure,
    ReaderInstruction,
    TakeCached,
)
from kdlab.soft_labels.label_file import GrowingLabels, own_folder
from kdlab.supervision.children import configured, lower_priority

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
_FINISH_EVERY_S = 5.0  # between checks whether the label file is complete


class StudentReader(ReaderLoop):
    def __init__(self, config: ReaderConfig, samples: PlannedSamples, ring: Ring) -> None:
        super().__init__()
        self.config, self.ring = config, ring
        labels, meta = None, config.label_file
        if meta is not None:
            # Outputs: inner ones behind the logits.
            ids, outputs = samples.train_ids(), config.classes
            labels = GrowingLabels(own_folder(meta), meta, ids, outputs)
        self.batches = BatchesUnderWay(samples, config.classes, labels)
        start = config.start
        by_epoch = lru_cache(maxsize=4)(samples.sizes)  # needed for every part
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
                rules=to_builtins(config.rules),
                sizes=[list(by_epoch(start.epoch + later)) for later in (0, 1)],
            ).machine
        self.coordinator_away = False
        self.free_slots = list(range(ring.layout.slots))
        self.filled: dict[int, int] = {}  # slot -> samples, until the trainer frees it
        self.hand_over = HandOver(self._handed_over, self.spawn)
        self.finish_at = begun + _FINISH_EVERY_S
        self.defect: BaseException | None = None  # the last one that was reported

    # Carrying out

    def _collect(self) -> None:
        """Pass on slots that the trainer freed, which it does without a message."""
        for slot in self.ring.collect():
            self.free_slots.append(slot)
            now = time.monotonic()
            super().do(self.machine.on_slot_free(self.filled.pop(slot), now))
        self.ring.reader_waits(not self.free_slots)

    def do(self, instructions: Instructions) -> None:
        try:
            super().do(instructions)
            self._collect()
        except Exception as error:
            # Reported before the next fact is handled: a batch that was due now is missing.
            self.failed_task(error)
            raise

    def execute(self, instruction: ReaderInstruction) -> None:
        match instruction:
            case Keep(part):
                assert self.answer is not None
                self.batches.put(part, self.answer, self.computed_by)
            case TakeCached(part):
                self.batches.take_cached(part)
            case Deliver(epoch, batch):
                self.deliver(epoch, batch)
            case EmitEvent(event):
                self.report(event)
            case Fail():
                self.fail(instruction)
            case _:
                super().execute(instruction)

    def deliver(self, epoch: int, batch: int) -> None:
        slot = self.free_slots.pop(0)
        count, left = self.batches.move_to(self.ring.slot(slot), epoch, batch)
        self.filled[slot] = count
        self.hand_over.add(slot, left)

    def _handed_over(self, slot: int) -> None:
        if self.ring.fill(slot):
            self._write(0)

    # Wires

    async def soft_labels(
        self, part: Part, teacher: str, *, check: bool
    ) -> NDArray[np.float32]:
        ids = self.batches.ids(part.epoch, part.batch)[part.start : part.stop]
        views = None
        if self._wants_views(teacher):
            begin = time.monotonic()
            views = await self.batches.views(part, keep=not check)
            self.wires.waits["views_s"] += time.monotonic() - begin
        epoch = self.batches.view_of(part.epoch)
        # A teacher that repeats a cached answer would never contradict itself.
        return await self.wires.soft_labels(teacher, epoch, ids, views, fresh=check)

    def _wants_views(self, teacher: str) -> bool:
        """True where this teacher gets pixels."""
        if self.config.inputs != "auto":
            return bool(self.config.inputs != "reference")
        known = self.machine.teachers.get(teacher)
        return known is not None and not known.info.by_reference

    def figures(self) -> dict[str, float]:
        """Counters of the machine and of the connections."""
        return self.machine.figures() | self.wires.figures()

    def _is_away(self, why: str) -> None:
        if not self.coordinator_away:
            self.coordinator_away = True
            teachers = len(self.machine.teachers)
            self.report(CoordinatorAway(why=why, teachers=teachers))

    def _is_back(self) -> None:
        if self.coordinator_away:
            self.coordinator_away = False
            self.report(CoordinatorBack())

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            if line == b"0\n":
                self._collect()
                continue
            match ReaderOrder.from_builtins(from_json(dict[str, object], line)):
                case StopReader():
                    return
                case PauseReader(paused):
                    self.machine.on_paused(paused, time.monotonic())
                case SetThresholds(lt, ut):
                    self.do(self.machine.on_thresholds(lt, ut, time.monotonic()))

    def tick(self) -> None:
        super().tick()
        now = time.monotonic()
        figures = self.figures() | {"served_s": now - self.begun}
        for place, name in enumerate(FIGURES):
            self.ring.figures[place] = figures[name]
        if now > self.finish_at:
            self.finish_at = now + _FINISH_EVERY_S
            self.spawn(self._finish_labels())

    async def _finish_labels(self) -> None:
        """Seal the label file once it is complete; it is hashed as a whole, so in a thread."""
        made_by = await asyncio.to_thread(self.batches.finish)
        if made_by is not None and self.config.label_file is not None:
            folder = own_folder(self.config.label_file)
            self.report(LabelsStored(folder=str(folder), made_by=made_by))

    # Messages to the trainer

    def report(self, event: Event) -> None:
        if isinstance(event, AllTeachersLost):
            address = self.config.coordinator
            event = event.but(coordinator=address, join=join_command(address))
        self._emit(event.facts())

    def fail(self, failure: ReaderFailure) -> None:
        self._emit(to_builtins(failure))

    def _emit(self, message: Mapping[str, object]) -> None:
        self._write(message)
        self.ring.message_sent()

    def _write(self, message: int | Mapping[str, object]) -> None:
        self.writer.write(json.dumps(message, default=str).encode() + b"\n")

    def failed_task(self, error: BaseException) -> None:
        if error is not self.defect:  # else it was reported already
            self.defect = error
            traceback.print_exception(error)
            self.fail(ReaderDefect(repr(error)))

    async def run(self, end: socket.socket) -> None:
        """Serve until the trainer stops or closes this reader."""
        stream, self.writer = await asyncio.open_connection(sock=end)
        self.wires = await PoolConnection.open(self.config)
        self.spawn(self.watch(self._is_away, self._is_back, self.figures))
        self.spawn(self.keep_ticking())
        await self._listen(stream)
        for task in list(self.background):
            task.cancel()
        await self._finish_labels()
        try:
            await self.wires.coordinator("student_gone")
        except (OSError, TimeoutError):
            return  # no coordinator to notify
        await self.wires.close()


def main() -> None:
    config = configured(ReaderConfig)
    keep_small()
    lower_priority()
    configure_dask()
    refuse_pickles()
    security.enable_tls(config.tls)
    notebook_components.define_components(config.components)
    spec = construct(DataSpec, from_dict(config.samples.data, "the student's data"))
    samples = described(spec.load(), config.samples)
    ring = Ring(config.layout, config.ring_fd)
    end = socket.socket(fileno=config.socket_fd)
    end.setblocking(False)
    asyncio.run(StudentReader(config, samples, ring).run(end))


if __name__ == "__main__":
    main()
