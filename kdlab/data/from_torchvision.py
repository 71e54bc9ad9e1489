"""Base class of the torchvision data sets: root, download and error messages."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import ArrayLike

from kdlab.data.images import DataSpec, Decoded, Notify
from kdlab.data.splits import TEST, TRAIN
from kdlab.errors import DataError


class ArraySet(Protocol):
    """A torchvision data set with arrays, such as CIFAR and MNIST."""

    data: ArrayLike
    targets: Sequence[int]
    classes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TorchvisionArrays(DataSpec):
    """A data set that torchvision reads into memory.

    root: folder of the set, in torchvision's layout.
    download: fetch it when it is missing.
    """

    torchvision_name: ClassVar[str]  # of its class in torchvision.datasets
    decoded_bytes: ClassVar[int]

    root: str = "~/.cache/kdlab/torchvision"
    download: bool = False

    def folder(self) -> Path:
        return Path(os.path.expanduser(self.root)).resolve()

    def identity(self) -> str:
        self.open_both()
        return f"torchvision v1 {self.component} {self.folder()}"

    def expected_bytes(self) -> int:
        return self.decoded_bytes

    def open_both(self) -> list[ArraySet]:
        """Open the train and the test set.

        Raises:
            DataError: they are not under `root`; names the path.
        """
        from torchvision import datasets

        make = partial(getattr(datasets, self.torchvision_name), self.folder())
        try:
            return [make(train=train, download=self.download) for train in (True, False)]
        except (RuntimeError, OSError) as error:
            allowed = (
                "The download was tried and failed."
                if self.download
                else "Downloading is off; `data.download=true` allows it."
            )
            raise DataError(
                f"{self.component} was not found (or is incomplete) under "
                f"{self.folder()}: {error}. {allowed} Or set `data.root` to where it is."
            ) from error

    def decode(self, say: Notify) -> Decoded:
        both = self.open_both()
        pixels = np.concatenate([np.asarray(one.data) for one in both])
        inputs = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None]
        labels = np.concatenate([np.asarray(one.targets) for one in both]).astype(np.int64)
        counts = [len(one.targets) for one in both]
        split = np.repeat(np.array([TRAIN, TEST], np.uint8), counts)
        classes = tuple(both[0].classes)
        return Decoded(np.ascontiguousarray(inputs), labels, split, classes)
