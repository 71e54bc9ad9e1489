"""Load views beside the computing, but for the first step of an epoch (section V-A)."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdlab.data.samples import PlannedSamples
from kdlab.models.model import Normalised


class Loader:
    """Loads a device's views in a thread, one batch ahead of the training."""

    def __init__(
        self, samples: PlannedSamples, model: Normalised, device: torch.device
    ) -> None:
        self.samples, self.device = samples, device
        self.mean, self.std = model.mean.to(device), model.std.to(device)
        self.epoch = 0
        self.ids: list[NDArray[np.int64]] = []
        self.first = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._next: tuple[tuple[int, int, int, int], Future[Tensor]] | None = None

    def begin(self, epoch: int, first: int) -> None:
        """Begin an epoch at its batch `first`; steps count from there."""
        self.epoch, self.first = epoch, first
        self.ids = self.samples.batches(epoch)[first:]

    def __call__(self, step: int, start: int, stop: int) -> Tensor:
        """Return the normalised views (stop - start, C, H, W) of a step's rows."""
        key = (self.epoch, self.first + step, start, stop)
        if self._next is not None and self._next[0] == key:
            views = self._next[1].result()
        else:
            views = self._views(self.ids[step][start:stop])
        self._next = None
        if step + 1 < len(self.ids) and len(self.ids[step + 1]) == len(self.ids[step]):
            ahead = (self.epoch, self.first + step + 1, start, stop)
            ids = self.ids[step + 1][start:stop]  # now: `begin` may come before the thread
            self._next = ahead, self._thread.submit(self._views, ids)
        return (views.to(self.device, non_blocking=True).float() - self.mean) / self.std

    def _views(self, ids: NDArray[np.int64]) -> Tensor:
        views = torch.from_numpy(self.samples.views(ids, self.epoch))
        # From pinned memory a GPU copies beside its computing; the thread pins, not the step.
        return views.pin_memory() if self.device.type == "cuda" else views

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
