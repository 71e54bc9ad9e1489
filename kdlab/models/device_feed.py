"""Copies to and from a GPU that overlap with its computation.

Copies from pinned memory run on a separate stream while kernels run; kernels that need them wait on
the device, not on the host. On a CPU nothing is copied.
"""

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class DeviceFeed:
    """Copies to one device.

    Args:
        device: a GPU, or the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None  # of the last copy
        if device.type == "cuda":
            self._stream, self._copied = torch.cuda.Stream(device), torch.cuda.Event()

    def to_device(self, *tensors: Tensor) -> list[Tensor]:
        """Copy tensors to the device; later kernels wait for the copies."""
        if self._stream is None or self._copied is None:
            return list(tensors)
        with torch.cuda.stream(self._stream):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            self._copied.record(self._stream)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(self._copied)
        for tensor in copies:  # keeps its memory until the kernels are done
            tensor.record_stream(computing)
        return copies

    def concatenate(self, parts: Sequence[NDArray[Any]]) -> Tensor:
        """Concatenate arrays by rows, on the device."""
        if self._stream is None:
            return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))
        rows = [torch.from_numpy(part) for part in parts]
        shape = (sum(map(len, rows)), *rows[0].shape[1:])
        staged = torch.empty(shape, dtype=rows[0].dtype, pin_memory=True)
        return self.to_device(torch.cat(rows, out=staged))[0]

    def wait(self) -> None:
        """Block until the sources of the last copy may be overwritten."""
        if self._copied is not None:
            self._copied.synchronize()


class PendingResult:
    """A result that the device may not have computed yet.

    Args:
        result: (N, classes) float32, on its device.
    """

    def __init__(self, result: Tensor) -> None:
        self._done: torch.cuda.Event | None = None  # None: in the host's memory
        self._result = result
        if result.is_cuda:
            self._result = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            self._result.copy_(result, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(result.device))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._result.shape)

    @property
    def is_ready(self) -> bool:
        return self._done is None or self._done.query()

    def get(self) -> NDArray[np.float32]:
        """Wait for the result; return it in the host's memory."""
        if self._done is not None:
            self._done.synchronize()
        values: NDArray[np.float32] = self._result.numpy()
        return values


def pin(address: int, count: int) -> bool:
    """Pin `count` bytes of this process, so that a GPU reads them directly.

    False where the driver refuses; copies are slower then, but as correct.
    """
    refused = int(torch.cuda.cudart().cudaHostRegister(address, count, 0))
    if refused:
        _forget_error()
        logging.getLogger("kdlab").warning(
            "%.0f MB of shared memory could not be pinned (CUDA error %d): copies to the GPU "
            "do not overlap. `ulimit -l` shows the limit of a process.",
            count / 1e6,
            refused,
        )
    return not refused


def unpin(address: int) -> None:
    """Undo `pin`, before the memory is freed."""
    if int(torch.cuda.cudart().cudaHostUnregister(address)):
        _forget_error()


def _forget_error() -> None:
    """Clear CUDA's last error, which PyTorch would take for the next kernel's."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
