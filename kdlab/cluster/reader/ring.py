"""Pass batches from the reader to the trainer through shared memory, without a copy.

Both map an unnamed file (in memory where the system has /dev/shm). It also holds which slots
are filled and which are free again, as two queues with one writer each; so in the steady
state a batch changes hands without a system call, which costs more than all else here. An end
with nothing to do sets a flag in shared memory that it waits, and is woken through a socket
pair.

The socket pair carries lines of JSON: a bare 0 wakes, an object is a message or an order.
Both ends can wait on it, and both see when the other ends. Nothing is left to clean up when a
process dies.
"""

import json
import mmap
import os
import select
import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdlab.codec import Tagged, from_json
from kdlab.errors import ClusterError
from kdlab.papers.edl_dist.reader_instructions import ReaderFailure

_ALIGN = 64  # bytes; a cache line

# Words of the control part. Each is written by one side only.
_FILLED, _FREED = 0, 8  # slots put into a queue so far: by the reader, by the trainer
_TAKEN, _COLLECTED = 16, 24  # slots taken out so far: by the trainer, by the reader
_TRAINER_WAITS, _READER_WAITS, _MESSAGES = 32, 40, 48
_QUEUES = 56  # start of the queue of filled slots; that of freed ones follows


class Slot(NamedTuple):
    """Arrays of one slot, at full length."""

    head: NDArray[np.int64]  # epoch, batch, samples
    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    soft: NDArray[np.float32]
    views: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Shape of a ring of `slots`, each for one batch."""

    slots: int
    largest: int  # samples in the largest batch
    shape: tuple[int, int, int]  # (C, H, W) of a view
    classes: int
    figures: int = 16  # numbers of the reader, beside the slots

    @property
    def parts(self) -> list[tuple[type, tuple[int, ...]]]:
        """Type and shape of the arrays of a `Slot`."""
        return [
            (np.int64, (3,)),
            (np.int64, (self.largest,)),
            (np.int64, (self.largest,)),
            (np.float32, (self.largest, self.classes)),
            (np.uint8, (self.largest, *self.shape)),
        ]

    @property
    def slot_bytes(self) -> int:
        return sum(_aligned(_bytes(*part)) for part in self.parts)

    @property
    def words(self) -> int:
        """64-bit words of the control part: counters, flags and two queues."""
        return _QUEUES + 2 * self.slots

    @property
    def bytes(self) -> int:
        control = _aligned(8 * self.figures) + _aligned(8 * self.words)
        return self.slots * self.slot_bytes + control


def _bytes(dtype: type, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * prod(shape)


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


class Ring:
    """Slots in shared memory; `slot(k)` returns the arrays of one."""

    def __init__(self, layout: Layout, fd: int) -> None:
        self.layout, self.fd = layout, fd
        self._map = mmap.mmap(fd, layout.bytes)
        self._slots = [self._arrays(k) for k in range(layout.slots)]
        # The reader writes them at any time; at worst a torn read shows one old number.
        start = layout.slots * layout.slot_bytes
        self.figures: NDArray[np.float64] = np.frombuffer(
            self._map, np.float64, layout.figures, start
        )
        start += _aligned(8 * layout.figures)
        self._words = memoryview(self._map)[start : start + 8 * layout.words].cast("q")
        self._fence = threading.Lock()

    @classmethod
    def create(cls, layout: Layout) -> "Ring":
        memory = Path("/dev/shm")
        in_memory, why = memory.is_dir() and os.access(memory, os.W_OK), ""
        for folder in ([memory] if in_memory else []) + [Path(tempfile.gettempdir())]:
            with tempfile.TemporaryFile(prefix="kdlab-ring-", dir=folder) as file:
                try:
                    # Reserved now: a write beyond the available memory would kill the reader.
                    os.posix_fallocate(file.fileno(), 0, layout.bytes)
                except OSError as error:  # a small /dev/shm, as in containers
                    why = str(error)  # which also tells that a disk is full
                    continue
                return cls(layout, os.dup(file.fileno()))
        raise ClusterError(
            f"The ring between reader and trainer needs {layout.bytes / 1e6:.2f} MB, but neither "
            f"{memory} nor {tempfile.gettempdir()} has them free ({why}). Lower "
            f"soft_labels.slots ({layout.slots}) or train.batch ({layout.largest})."
        )

    def _arrays(self, slot: int) -> Slot:
        offset = slot * self.layout.slot_bytes
        arrays: list[NDArray[Any]] = []
        for dtype, shape in self.layout.parts:
            flat: NDArray[Any] = np.frombuffer(self._map, dtype, prod(shape), offset)
            arrays.append(flat.reshape(shape))
            offset += _aligned(_bytes(dtype, shape))
        return Slot(*arrays)

    def slot(self, number: int) -> Slot:
        return self._slots[number]

    @property
    def memory(self) -> tuple[int, int]:
        """Address in this process, and size in bytes, of all slots."""
        return self._slots[0].head.ctypes.data, self.layout.slots * self.layout.slot_bytes

    # The reader's side

    def fill(self, slot: int) -> bool:
        """Hand over a filled slot; True where the trainer waits and must be woken."""
        words, count = self._words, self._words[_FILLED]
        words[_QUEUES + count % self.layout.slots] = slot
        self._order()  # the slot and its place in the queue, then the counter
        words[_FILLED] = count + 1
        self._order()
        return bool(words[_TRAINER_WAITS])

    def collect(self) -> list[int]:
        """Slots that the trainer freed since the last call."""
        words, slots = self._words, self.layout.slots
        collected, freed = words[_COLLECTED], words[_FREED]
        self._order()
        new = [words[_QUEUES + slots + n % slots] for n in range(collected, freed)]
        words[_COLLECTED] = freed
        return new

    def reader_waits(self, waits: bool) -> None:
        """Set whether the reader waits for a free slot."""
        self._words[_READER_WAITS] = waits

    def message_sent(self) -> None:
        """Count a message on the channel, so that the trainer reads it."""
        self._words[_MESSAGES] += 1

    # The trainer's side

    def take(self) -> int | None:
        """The next filled slot, if there is one."""
        words, count = self._words, self._words[_TAKEN]
        if words[_FILLED] == count:
            return None
        self._order()  # the counter, then the slots that it counts
        words[_TAKEN] = count + 1
        return words[_QUEUES + count % self.layout.slots]

    def free(self, slot: int) -> bool:
        """Free a slot; True where a waiting reader should be woken now.

        It is woken for half of the slots at once: a wake costs more than a batch.
        """
        words, slots, count = self._words, self.layout.slots, self._words[_FREED]
        words[_QUEUES + slots + count % slots] = slot
        self._order()
        words[_FREED] = count + 1
        return bool(words[_READER_WAITS]) and 2 * self.uncollected() >= slots

    def uncollected(self) -> int:
        return self._words[_FREED] - self._words[_COLLECTED]

    def trainer_waits(self, waits: bool) -> None:
        self._words[_TRAINER_WAITS] = waits
        self._order()

    def messages_sent(self) -> int:
        return self._words[_MESSAGES]

    def _order(self) -> None:
        """Memory barrier: earlier writes become visible before later ones."""
        with self._fence:
            return  # a lock is a barrier on every machine

    def close(self) -> None:
        # Arrays of the last batch may still point into the map, which ends with them.
        self._slots.clear()
        self.figures = np.zeros(0)
        self._words.release()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# Messages beside events and the paper's instructions


class ReaderOrder(Tagged):
    """An order to the reader."""


class SetThresholds(ReaderOrder):
    lt: int  # samples
    ut: int


class PauseReader(ReaderOrder):
    """The student pauses or resumes."""

    paused: bool


class StopReader(ReaderOrder):
    """Return the teachers and end."""


class ReaderDefect(ReaderFailure):
    why: str


_SEND_S = 5.0  # to send an order to a reader that does not read


class Channel:
    """The trainer's end of the socket pair: blocking, with timeouts."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._buffer = end, b""

    def send(self, message: int | Mapping[str, object]) -> bool:
        """Send a message; False where the reader has ended or has not read for long.

        A wake never blocks: where the buffer is full, enough wakes are unread in it.
        """
        wake = isinstance(message, int)
        try:
            if not select.select([], [self._socket], [], 0.0 if wake else _SEND_S)[1]:
                return wake
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except (OSError, ValueError):  # closed at one of the ends
            return False
        return True

    def receive(self, timeout_s: float) -> int | dict[str, object] | None:
        """Return the next message, or None after the timeout.

        Raises:
            EOFError: the other end has closed, and all its messages were read.
        """
        while b"\n" not in self._buffer:
            if not select.select([self._socket], [], [], timeout_s)[0]:
                return None
            try:
                chunk = self._socket.recv(65536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return 0 if line == b"0" else from_json(dict[str, object], line)

    def close(self) -> None:
        self._socket.close()
