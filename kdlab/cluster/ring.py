"""Batches from the reader to the trainer through shared memory, without a copy between.

A file without a name (in memory where the system has /dev/shm) is mapped by both. A
socket pair carries lines of JSON: a bare number is a slot (filled, one way; free again,
the other way), an object is a word for people or an order. Both ends can wait on it, and
both see when the other is gone. Nothing is left to clean up when a process dies.
"""

import json
import mmap
import os
import select
import socket
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.errors import ClusterError

_ALIGN = 64  # bytes; a cache line


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Shape of a ring: `slots` places for one batch each."""

    slots: int
    largest: int  # samples in the largest batch
    shape: tuple[int, int, int]  # (C, H, W) of a view
    classes: int
    figures: int = 16  # numbers beside the slots, for people

    @property
    def parts(self) -> dict[str, tuple[type, tuple[int, ...]]]:
        return {
            "head": (np.int64, (3,)),  # epoch, batch, samples
            "ids": (np.int64, (self.largest,)),
            "labels": (np.int64, (self.largest,)),
            "soft": (np.float32, (self.largest, self.classes)),
            "views": (np.uint8, (self.largest, *self.shape)),
        }

    @property
    def slot_bytes(self) -> int:
        return sum(_aligned(_bytes(*part)) for part in self.parts.values())

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes + _aligned(8 * self.figures)


def _bytes(dtype: type, shape: tuple[int, ...]) -> int:
    return np.dtype(dtype).itemsize * prod(shape)


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


class Ring:
    """The mapped slots; `slot(k)` gives its arrays at full length."""

    def __init__(self, layout: Layout, fd: int) -> None:
        self.layout, self.fd = layout, fd
        self._map = mmap.mmap(fd, layout.bytes)
        self._slots = [self._arrays(k) for k in range(layout.slots)]
        # Written by the reader at any time; a torn read shows one old number, no more.
        self.figures: NDArray[np.float64] = np.frombuffer(
            self._map, np.float64, layout.figures, layout.slots * layout.slot_bytes
        )

    @classmethod
    def create(cls, layout: Layout) -> "Ring":
        memory = Path("/dev/shm")
        in_memory = memory.is_dir() and os.access(memory, os.W_OK)
        for folder in ([memory] if in_memory else []) + [Path(tempfile.gettempdir())]:
            with tempfile.TemporaryFile(prefix="kdlab-ring-", dir=folder) as file:
                try:
                    # Reserved now: a write past what there is would kill the reader.
                    os.posix_fallocate(file.fileno(), 0, layout.bytes)
                except OSError:  # a small /dev/shm, as containers have
                    continue
                return cls(layout, os.dup(file.fileno()))
        raise ClusterError(
            f"The ring between reader and trainer needs {layout.bytes / 1e6:.0f} MB; neither "
            f"{memory} nor {tempfile.gettempdir()} has them. Lower soft_labels.slots "
            f"({layout.slots}) or train.batch ({layout.largest})."
        )

    def _arrays(self, slot: int) -> dict[str, NDArray[Any]]:
        offset = slot * self.layout.slot_bytes
        arrays: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape) in self.layout.parts.items():
            flat: NDArray[Any] = np.frombuffer(self._map, dtype, prod(shape), offset)
            arrays[name] = flat.reshape(shape)
            offset += _aligned(_bytes(dtype, shape))
        return arrays

    def slot(self, number: int) -> dict[str, NDArray[Any]]:
        return self._slots[number]

    def close(self) -> None:
        # Arrays of the last batch may still point into the map: it goes with them.
        self._slots.clear()
        self.figures = np.zeros(0)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Channel:
    """The trainer's end of the socket pair: blocking, with time-outs."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._buffer = end, b""

    def send(self, message: int | dict[str, Any]) -> bool:
        """False when the other end is gone."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self, timeout_s: float) -> int | dict[str, Any] | None:
        """The next message, or None after the time-out.

        Raises:
            EOFError: the other end is gone and everything it said was read.
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
        message: int | dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        self._socket.close()
