"""What the torchvision data sets share: the root, downloading, and clear errors."""

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from kdlab.data.images import TEST, TRAIN, DataSpec, Decoded, Say
from kdlab.errors import DataError

S = TypeVar("S")


class ArraySet(Protocol):
    """A set that torchvision holds as arrays, as those of CIFAR and MNIST style."""

    data: ArrayLike
    targets: Sequence[int]
    classes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TorchvisionData(DataSpec):
    """A set that torchvision reads.

    root: folder that holds it, in torchvision's layout.
    download: fetch it when it is missing.
    """

    root: str = "~/.cache/kdlab/torchvision"
    download: bool = False

    def folder(self) -> Path:
        return Path(os.path.expanduser(self.root)).resolve()

    def open(self, make: Callable[..., S], **options: object) -> S:
        """A torchvision data set object.

        Raises:
            DataError: it is not under `root`, and the path that was searched.
        """
        try:
            return make(self.folder(), **options)
        except (RuntimeError, FileNotFoundError, OSError) as error:
            allowed = (
                "The download was tried and failed."
                if self.download
                else "Downloading is off; `data.download=true` allows it."
            )
            raise DataError(
                f"{self.component} was not found (or is incomplete) under "
                f"{self.folder()}: {error}. {allowed} Or set `data.root` to where it is."
            ) from error

    def identity(self) -> str:
        self.open_all()
        return f"torchvision v1 {self.component} {self.folder()}"

    @abstractmethod
    def open_all(self) -> tuple[object, object]:
        """The train and the test set."""


@dataclass(frozen=True, kw_only=True)
class TorchvisionArrays(TorchvisionData):
    """One that torchvision reads into memory."""

    @abstractmethod
    def torchvision_class(self) -> Callable[..., ArraySet]: ...

    def open_all(self) -> tuple[ArraySet, ArraySet]:
        make = self.torchvision_class()
        return (
            self.open(make, train=True, download=self.download),
            self.open(make, train=False, download=self.download),
        )

    def decode(self, say: Say) -> Decoded:
        train, test = self.open_all()
        pixels = np.concatenate([np.asarray(train.data), np.asarray(test.data)])
        inputs = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None]
        labels = np.concatenate([np.asarray(train.targets), np.asarray(test.targets)])
        sizes = (len(train.targets), len(test.targets))
        split = np.repeat(np.array([TRAIN, TEST], np.uint8), sizes)
        return Decoded(
            np.ascontiguousarray(inputs),
            labels.astype(np.int64),
            split,
            tuple(train.classes),
        )
