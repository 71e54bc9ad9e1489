"""What the torchvision data sets share: the root, downloading, and clear errors."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kdlab.data.images import TEST, TRAIN, DataSpec, Decoded
from kdlab.errors import DataError


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

    def open(self, make: Any, **options: Any) -> Any:
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

    def open_all(self) -> tuple[Any, Any]:
        """The train and the test set."""
        make = self.torchvision_class()
        return (
            self.open(make, train=True, download=self.download),
            self.open(make, train=False, download=self.download),
        )

    def torchvision_class(self) -> Any:
        raise NotImplementedError


def decoded(train: Any, test: Any) -> Decoded:
    """From the `data` and `targets` arrays of CIFAR and MNIST style sets."""
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
