"""The reader's process from the trainer's side: its messages, its slots, and its restarts.

It is restarted when it dies, and when it hangs (stopped, swapped out, on a dead mount): its
figures in shared memory are its heartbeat.
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

_TICK_S = 0.2  # between checks of a waiting trainer whether to stop
_REPORT_AFTER_S = 10.0  # without soft labels
_START_S = 120.0  # until the first heartbeat of a reader, on a busy machine
_RESTARTS, _RESTARTS_S = 5, 60.0  # of a reader, within these seconds; then the run fails


class ReaderProcess:
    """A reader, restarted for the remaining batches when it dies.

    Args:
        config: of the reader; this process fills in the descriptors.
        log: of the process.
        report: called with every event.
        stop: returns whether the user asked to stop.
        on_gpu: a GPU copies from its slots.
        hang_s: a reader without a heartbeat for this time is killed and restarted.
        start: starts the process.
        now: clock of its restarts and its silence, in seconds.
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
        self._last: dict[str, float] = {}  # figures after the ring is closed
        self._again = Backoff(most=_RESTARTS, within_s=_RESTARTS_S)
        self._paused = False
        self.at(config.start.epoch, config.start.done)
        self._start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def at(self, epoch: int, done: Collection[int]) -> None:
        """Set the student's epoch, and the batches of it that are trained on."""
        self._epoch, self._done = epoch, set(done)

    def trained(self, batch: int) -> None:
        self._done.add(batch)

    def _start(self) -> None:
        """Start a reader and its shared memory, for the batches that remain."""
        self._ring = Ring.create(self.config.layout)
        self._pinned = self._on_gpu and pin(*self._ring.memory)
        self._ended = self._alive = False
        self._received = 0  # messages of the reader that were read, without wakes
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
        """Replace a reader that died or is `silent`; the new one takes over its teachers.

        Raises:
            ClusterError: it died too often; quotes its log.
        """
        last = self.figures()
        why = silent or self._child.exit_report("ended during the run")
        self._end(kill=bool(silent))
        if self._again.wait_s(self._now()) == inf:
            self._last = last
            raise ClusterError(f"{why}\nIt was restarted {_RESTARTS} times.")
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
        """Wait for the next filled slot and return its number.

        Raises:
            NoTeacherLeft: no teacher is left and none came within `wait_s`.
            ClusterError: the reader failed too often.
            RunStopped: the user asked while the student waited.
        """
        while True:
            try:
                return self._filled_slot()
            except EOFError as silent:
                self._restart(str(silent))

    def _filled_slot(self) -> int:
        """Wait for the next filled slot of this reader.

        Raises:
            EOFError: the reader is gone, or hangs, as its text then says.
        """
        if self._ring.messages_sent() != self._received:
            self._receive(0.0)
        slot = self._ring.take()
        if slot is not None:
            self._alive = True
            return slot
        self._ring.trainer_waits(True)
        begin = beaten_at = self._now()
        beat, reported = self.figures()["served_s"], False
        try:
            while (slot := self._ring.take()) is None:
                if self._ring.uncollected():  # the reader may wait for these
                    self._channel.send(0)
                if not self._receive(_TICK_S) and self._stop():
                    raise RunStopped("stopped by the user while waiting for soft labels")
                now, last = self._now(), beat
                beat = self.figures()["served_s"]
                beaten_at = now if beat != last else beaten_at
                silent_s = now - beaten_at
                started = self._alive or beat > 0
                if silent_s > (self.hang_s if started else max(self.hang_s, _START_S)):
                    raise EOFError(f"The reader hangs for {silent_s:.0f} s")
                if not reported and now - begin > _REPORT_AFTER_S:
                    reported = True
                    why = self._awaited_for(silent_s)
                    self._report(LabelsAwaited(seconds=now - begin, why=why))
            self._alive = True
            return slot
        finally:
            self._ring.trainer_waits(False)

    def _awaited_for(self, silent_s: float) -> str:
        """Why no soft labels come, as far as this process knows."""
        figures = self.figures()
        if silent_s > _REPORT_AFTER_S / 2:
            return f"the reader gives no sign of life for {silent_s:.0f} s; see {self.log}"
        if not figures["teachers"]:
            return "it has no teacher"
        return (
            f"{figures['in_flight']:.0f} samples are with {figures['teachers']:.0f} teachers of "
            f"{figures['capacity']:.4g} samples/s in all, {figures['volume']:.0f} have soft labels"
        )

    def slot(self, number: int) -> tuple[Slot, Tensor, Tensor, Tensor]:
        """Arrays of a slot, and its labels, soft labels and views as tensors over them."""
        labels, soft, views = self._tensors[number]
        return self._ring.slot(number), labels, soft, views

    def free(self, number: int) -> None:
        if self._ring.free(number):
            self._channel.send(0)

    # Messages

    def _receive(self, timeout_s: float) -> bool:
        """Read the reader's messages, at least one; False after the timeout.

        Raises:
            EOFError: the reader is gone.
        """
        received = False
        while True:
            message = self._channel.receive(0.0 if received else timeout_s)
            if message is None:
                return received
            received = True
            if isinstance(message, int):
                continue  # a wake
            self._received += 1
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
                        log=f"{self.log}. Last error: {why or 'none'}",
                    )
                case ReaderDefect(why):
                    raise ClusterError(
                        f"The reader failed: {why}. End of {self.log}:\n{tail(self.log)}"
                    )

    def figures(self) -> dict[str, float]:
        return self._last or dict(zip(FIGURES, self._ring.figures.tolist(), strict=True))

    def _send(self, order: ReaderOrder) -> bool:
        return self._channel.send(to_builtins(order))

    def set_thresholds(self, lt: int, ut: int) -> None:
        """Set the thresholds, in samples; a restarted reader has them too."""
        self._send(SetThresholds(lt, ut))
        rules = replace(self.config.rules, lt=lt, ut=ut)
        self.config = replace(self.config, rules=rules)

    def pause(self, *, paused: bool) -> None:
        self._paused = paused
        self._send(PauseReader(paused))

    def poll(self) -> None:
        """Pass on messages while nobody takes batches."""
        try:
            self._receive(0.0)
        except EOFError:
            return  # the next `take` restarts it

    def close(self) -> None:
        """Stop the reader; its teachers become free for others."""
        if self._ended:  # it could not be restarted
            return
        if self._send(StopReader()):
            self._drain()
        self._last = self.figures()
        self._end()

    def _drain(self) -> None:
        """Read the last messages, so that the reader can finish writing."""
        try:
            for _ in range(10_000):
                message = self._channel.receive(3.0)
                if message is None:
                    return
                if isinstance(message, dict) and "event" in message:
                    self._report(parse(message))
        except EOFError:
            return
