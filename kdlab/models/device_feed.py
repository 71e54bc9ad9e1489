"""What goes to a GPU and comes back beside what it computes.

Copies from pinned memory go on while kernels run, on a stream of their own; kernels that need them
wait on the device, and the host goes on. On a CPU nothing is copied.
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
        self._copied: torch.cuda.Event | None = None  # what was moved last
        if device.type == "cuda":
            self._stream, self._copied = torch.cuda.Stream(device), torch.cuda.Event()

    def moved(self, *tensors: Tensor) -> list[Tensor]:
        """These on the device, for what is computed from now on."""
        if self._stream is None or self._copied is None:
            return list(tensors)
        with torch.cuda.stream(self._stream):
            found = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            self._copied.record(self._stream)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(self._copied)
        for tensor in found:  # its memory is not used again before the kernels are done
            tensor.record_stream(computing)
        return found

    def joined(self, parts: Sequence[NDArray[Any]]) -> Tensor:
        """These arrays one behind the other, on the device."""
        if self._stream is None:
            return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))
        rows = [torch.from_numpy(part) for part in parts]
        shape = (sum(map(len, rows)), *rows[0].shape[1:])
        staged = torch.empty(shape, dtype=rows[0].dtype, pin_memory=True)
        return self.moved(torch.cat(rows, out=staged))[0]

    def wait(self) -> None:
        """Until what was moved last may be overwritten."""
        if self._copied is not None:
            self._copied.synchronize()


class PendingResult:
    """A result that the device may still be at work on.

    Args:
        result: on its device; (N, classes) float32.
    """

    def __init__(self, result: Tensor) -> None:
        self._done: torch.cuda.Event | None = None  # None: it is here
        self._here = result
        if result.is_cuda:
            self._here = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            self._here.copy_(result, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(result.device))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._here.shape)

    @property
    def is_here(self) -> bool:
        return self._done is None or self._done.query()

    def get(self) -> NDArray[np.float32]:
        """The result in the host's memory; waits for it."""
        if self._done is not None:
            self._done.synchronize()
        found: NDArray[np.float32] = self._here.numpy()
        return found


def pin(address: int, count: int) -> bool:
    """Pin so many bytes of this process, so that a GPU copies from them by itself.

    False where the driver refuses; copies are slower then, and as right.
    """
    refused = int(torch.cuda.cudart().cudaHostRegister(address, count, 0))
    if refused:
        _forget_error()
        logging.getLogger("kdlab").warning(
            "%.0f MB of shared memory are not pinned (CUDA error %d): copies to the GPU wait "
            "for each other. `ulimit -l` says how much a process may pin.",
            count / 1e6,
            refused,
        )
    return not refused


def unpin(address: int) -> None:
    """Undo `pin`, before the memory goes."""
    if int(torch.cuda.cudart().cudaHostUnregister(address)):
        _forget_error()


def _forget_error() -> None:
    """CUDA keeps what a call refused, and PyTorch would take it for the next kernel's."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
