"""Random pixels of a given shape, to measure throughput; there is nothing to learn."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from kdlab.config import Range, register
from kdlab.data.counter_random import words
from kdlab.data.images import DataSpec, Decoded, Notify
from kdlab.data.splits import TEST, TRAIN


@register("data/synthetic")
@dataclass(frozen=True, kw_only=True)
class Synthetic(DataSpec):
    """Random images and labels of any shape: for throughput only, never for accuracy."""

    samples: Annotated[int, Range(ge=20)] = 1024
    classes: Annotated[int, Range(ge=2)] = 10
    size: Annotated[int, Range(ge=1)] = 32
    channels: Annotated[int, Range(ge=1)] = 3
    seed: int = 0

    def identity(self) -> str:
        shape = (self.samples, self.channels, self.size, self.classes)
        return f"synthetic v1 {shape} seed={self.seed}"

    def expected_bytes(self) -> int:
        return self.samples * self.channels * self.size**2

    def decode(self, say: Notify) -> Decoded:
        ids = np.arange(self.samples)
        pixels = self.channels * self.size**2
        noise = words(self.seed, 0, ids, -(-pixels // 8)).view(np.uint8)[:, :pixels]
        inputs = noise.reshape(self.samples, self.channels, self.size, self.size)
        labels = words(self.seed, 1, ids, 1)[:, 0] % np.uint64(self.classes)
        split = np.full(self.samples, TRAIN, np.uint8)
        split[-max(1, self.samples // 10) :] = TEST
        classes = tuple(f"c{i}" for i in range(self.classes))
        return Decoded(inputs, labels.astype(np.int64), split, classes)
