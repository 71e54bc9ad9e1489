"""The reader's process from the trainer's side: its words, its slots, and its restarts.

It is started again when it dies, and when it stands still (stopped, swapped out, on a mount that is
dead): its figures in shared memory are its beat.
"""

import socket
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from kdlab.cluster.child_configs import ReaderConfig, ReaderStart
from kdlab.cluster.reader.ring import (
    Channel,
    PauseReader,
    ReaderDefect,
    ReaderOrder,
    Ring,
    SetThresholds,
    Slot,
    StopReader,
)
from kdlab.cluster.reader.student_reader import FIGURES
from kdlab.codec import to_builtins
from kdlab.errors import ClusterError, NoTeacherLeft, RunStopped
from kdlab.events.event import Emit
from kdlab.events.log import parse
from kdlab.events.teachers import LabelsAwaited, ReaderRestarted
from kdlab.models.device_feed import pin, unpin
from kdlab.papers.edl_dist.reader_instructions import Fail, ReaderFailure
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.children import Child, StartChild, tail

_TICK_S = 0.2  # how often a waiting trainer looks whether it should stop
_SAID_AFTER_S = 10.0  # without soft labels
_START_S = 120.0  # of a reader that shows its first sign of life on a busy machine
_RESTARTS, _RESTARTS_S = 5, 60.0  # of a reader, in so many seconds, before the run fails


class ReaderProcess:
    """A reader that is started again, for what is still to be trained on, when it dies.

    Args:
        config: but for the descriptors, which are this process's own.
        log: of the process.
        report: told of every event.
        stop: whether the user asked to stop.
        on_gpu: a GPU copies from its slots.
        hang_s: a reader without a sign of life for so long is killed and started again.
        start: starts the process.
        now: seconds, by which its restarts and its silence are counted.
    """

    def __init__(
        self,
        config: ReaderConfig,
        log: Path,
        report: Emit,
        stop: Callable[[], bool],
        *,
        on_gpu: bool = False,
        hang_s: float = 20.0,
        start: StartChild = Child,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.log, self._on_gpu = config, log, on_gpu
        self._start_child, self._now, self.hang_s = start, now, hang_s
        self._report, self._stop = report, stop
        self._last: dict[str, float] = {}  # figures, kept when the ring is gone
        self._again = Backoff(most=_RESTARTS, within_s=_RESTARTS_S)
        self._paused = False
        self.at(config.start.epoch, config.start.done)
        self._start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def at(self, epoch: int, done: Collection[int]) -> None:
        """The student is in this epoch, and was trained on these batches of it."""
        self._epoch, self._done = epoch, set(done)

    def trained(self, batch: int) -> None:
        self._done.add(batch)

    def _start(self) -> None:
        """A reader, and the shared memory between us, for what is still to be trained on."""
        self._ring = Ring.create(self.config.layout)
        self._pinned = self._on_gpu and pin(*self._ring.memory)
        self._ended = self._alive = False
        self._heard = 0  # words of the reader, wakes not counted
        slots = [self._ring.slot(k) for k in range(self.config.layout.slots)]
        self._tensors = [tuple(map(torch.from_numpy, slot[2:])) for slot in slots]
        ours, theirs = socket.socketpair()
        config = replace(
            self.config,
            start=ReaderStart(epoch=self._epoch, done=tuple(sorted(self._done))),
            ring_fd=self._ring.fd,
            socket_fd=theirs.fileno(),
        )
        self._channel = Channel(ours)
        self._child = self._start_child(
            "kdlab.cluster.reader.student_reader",
            config,
            self.log,
            fds=(self._ring.fd, theirs.fileno()),
        )
        theirs.close()

    def _restart(self, silent: str) -> None:
        """It died, or is `silent`: another one takes up what was not trained on, with its teachers.

        Raises:
            ClusterError: it has died again and again; quotes its log.
        """
        last = self.figures()
        why = silent or self._child.exit_report("ended during the run")
        self._end(kill=bool(silent))
        if self._again.wait_s(self._now()) == inf:
            self._last = last
            raise ClusterError(f"{why}\nIt was started again {_RESTARTS} times.")
        first_line, batches = why.split("\n", 1)[0], len(self._done)
        self._report(ReaderRestarted(why=first_line, epoch=self._epoch, batches=batches))
        self._start()
        if self._paused:
            self.pause(paused=True)

    def _end(self, *, kill: bool = False) -> None:
        self._ended = True
        self._child.stop(0.0 if kill else 5.0)
        self._channel.close()
        self._tensors.clear()
        if self._pinned:
            unpin(self._ring.memory[0])
        self._ring.close()

    # Slots

    def take(self) -> int:
        """The next filled slot.

        Raises:
            NoTeacherLeft: no teacher is left and none came within `wait_s`.
            ClusterError: the reader fails again and again.
            RunStopped: the user asked while the student waited.
        """
        while True:
            try:
                return self._filled_slot()
            except EOFError as silent:
                self._restart(str(silent))

    def _filled_slot(self) -> int:
        """The next one of this reader.

        Raises:
            EOFError: the reader is gone, or stands still, which it says.
        """
        if self._ring.words_said() != self._heard:
            self._hear(0.0)
        slot = self._ring.take()
        if slot is not None:
            self._alive = True
            return slot
        self._ring.trainer_waits(True)
        begin = beaten_at = self._now()
        beat, said = self.figures()["served_s"], False
        try:
            while (slot := self._ring.take()) is None:
                if self._ring.uncollected():  # the reader may wait for these
                    self._channel.send(0)
                if not self._hear(_TICK_S) and self._stop():
                    raise RunStopped("stopped by the user while waiting for soft labels")
                now, last = self._now(), beat
                beat = self.figures()["served_s"]
                beaten_at = now if beat != last else beaten_at
                silent_s = now - beaten_at
                started = self._alive or beat > 0
                if silent_s > (self.hang_s if started else max(self.hang_s, _START_S)):
                    raise EOFError(f"The reader has stood still for {silent_s:.0f} s")
                if not said and now - begin > _SAID_AFTER_S:
                    said = True
                    why = self._awaited_for(silent_s)
                    self._report(LabelsAwaited(seconds=now - begin, why=why))
            self._alive = True
            return slot
        finally:
            self._ring.trainer_waits(False)

    def _awaited_for(self, silent_s: float) -> str:
        """Why no soft labels come, as far as is known here."""
        found = self.figures()
        if silent_s > _SAID_AFTER_S / 2:
            return f"the reader shows no sign of life since {silent_s:.0f} s; {self.log} says more"
        if not found["teachers"]:
            return "it has no teacher"
        return (
            f"{found['in_flight']:.0f} samples are with {found['teachers']:.0f} teachers that do "
            f"{found['capacity']:.4g} samples/s together, {found['volume']:.0f} lie here"
        )

    def slot(self, number: int) -> tuple[Slot, Tensor, Tensor, Tensor]:
        """Its arrays, and its labels, soft labels and views as tensors over them."""
        labels, soft, views = self._tensors[number]
        return self._ring.slot(number), labels, soft, views

    def free(self, number: int) -> None:
        if self._ring.free(number):
            self._channel.send(0)

    # Words

    def _hear(self, timeout_s: float) -> bool:
        """Read what the reader says, at least one line; False after the time-out.

        Raises:
            EOFError: the reader is gone.
        """
        heard = False
        while True:
            message = self._channel.receive(0.0 if heard else timeout_s)
            if message is None:
                return heard
            heard = True
            if isinstance(message, int):
                continue  # a wake
            self._heard += 1
            if "event" in message:
                self._report(parse(message))
                continue
            match ReaderFailure.from_builtins(message):
                case Fail(unplaced, batches, why):
                    raise NoTeacherLeft(
                        unplaced=unplaced,
                        batches=batches,
                        waited_s=self.config.rules.wait_s,
                        address=self.config.coordinator,
                        log=f"{self.log}. Last trouble: {why or 'none'}",
                    )
                case ReaderDefect(why):
                    raise ClusterError(
                        f"The reader failed: {why}. End of {self.log}:\n{tail(self.log)}"
                    )

    def figures(self) -> dict[str, float]:
        return self._last or dict(zip(FIGURES, self._ring.figures.tolist(), strict=True))

    def _tell(self, order: ReaderOrder) -> bool:
        return self._channel.send(to_builtins(order))

    def set_thresholds(self, lt: int, ut: int) -> None:
        """In samples; a reader that is started again has them too."""
        self._tell(SetThresholds(lt, ut))
        rules = replace(self.config.rules, lt=lt, ut=ut)
        self.config = replace(self.config, rules=rules)

    def pause(self, *, paused: bool) -> None:
        self._paused = paused
        self._tell(PauseReader(paused))

    def look(self) -> None:
        """Pass on what is news while nobody takes batches."""
        try:
            self._hear(0.0)
        except EOFError:
            return  # whoever waits for the next batch starts it again

    def close(self) -> None:
        """Tell the reader to go; its teachers become free for others."""
        if self._ended:  # it could not be started again
            return
        if self._tell(StopReader()):
            self._drain()
        self._last = self.figures()
        self._end()

    def _drain(self) -> None:
        """Read what is still said, so that the reader can finish writing."""
        try:
            for _ in range(10_000):
                message = self._channel.receive(3.0)
                if message is None:
                    return
                if isinstance(message, dict) and "event" in message:
                    self._report(parse(message))
        except EOFError:
            return
