"""What the torchvision data sets share: the root, downloading, and clear errors."""

import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdlab.data.images import DataSpec, Decoded, Say
from kdlab.data.splits import TEST, TRAIN
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

    torchvision_name: ClassVar[str]  # of its class
    decoded_bytes: ClassVar[int]

    def expected_bytes(self) -> int:
        return self.decoded_bytes

    def open_all(self) -> tuple[ArraySet, ArraySet]:
        from torchvision import datasets

        make: Callable[..., ArraySet] = getattr(datasets, self.torchvision_name)
        return (
            self.open(make, train=True, download=self.download),
            self.open(make, train=False, download=self.download),
        )

    def decode(self, say: Say) -> Decoded:
        train, test = self.open_all()
        pixels = np.concatenate([np.asarray(train.data), np.asarray(test.data)])
        inputs = pixels.transpose(0, 3, 1, 2) if pixels.ndim == 4 else pixels[:, None]
        inputs = np.ascontiguousarray(inputs)
        return split_in_two(inputs, train.targets, test.targets, train.classes)


def split_in_two(
    inputs: NDArray[np.uint8],
    train: Sequence[int],
    test: Sequence[int],
    classes: Sequence[str],
) -> Decoded:
    """The images of two sets, whose labels are `train` and `test`, one behind the other."""
    labels = np.concatenate([np.asarray(train), np.asarray(test)]).astype(np.int64)
    split = np.repeat(np.array([TRAIN, TEST], np.uint8), (len(train), len(test)))
    return Decoded(inputs, labels, split, tuple(classes))
