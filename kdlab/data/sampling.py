"""Which images an epoch shows, and how often: each once, some again, or by weight.

A sample that is shown more than once in an epoch needs a view of its own each time. So its id says
which time it is: row + copy * (images of the set). All that depends on an id (views, references,
what is sent again) needs to know no more than that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from kdlab.config.spec import NOT_NEGATIVE, Range, Spec
from kdlab.data.counter_random import permutation, uniforms
from kdlab.data.splits import NO_LABEL
from kdlab.errors import Fault

COPIES = 1 << 20  # of a row in an epoch, at most: what a teacher takes for an id
_STREAM = 0x64726177  # keeps these draws apart from those of the order


@dataclass(frozen=True, kw_only=True)
class Sampling(Spec):
    """Which training images an epoch shows; each of them once by default.

    repeats: views of each image in an epoch, which shows as many times fewer images: repeated
        augmentation (Hoffer et al. 2020); copies lie side by side.
    balance: 0 leaves classes as frequent as they are, 1 draws all equally often (class-balanced),
        between lies between; images are drawn with replacement. Those without a label count as
        a class.
    class_weights: how often an image of each class is drawn, in their order, instead of `balance`;
        one without a label has weight 1.
    labelled_only: images without a label are not drawn, and those with one as much more often.
    """

    repeats: Annotated[int, Range(ge=1, le=64)] = 1
    balance: Annotated[float, Range(ge=0, le=1)] = 0.0
    class_weights: tuple[Annotated[float, NOT_NEGATIVE], ...] = ()
    labelled_only: bool = False

    @property
    def active(self) -> bool:
        return self.repeats > 1 or self.weighs

    @property
    def weighs(self) -> bool:
        return self.balance > 0 or bool(self.class_weights) or self.labelled_only

    def cross_faults(self) -> Iterator[Fault]:
        if self.repeats > 1 and self.weighs:
            yield Fault("repeats", "does not go with balance, class_weights, labelled_only")
        if self.balance and self.class_weights:
            yield Fault("balance", "has no effect with class_weights")
        if self.class_weights and not any(self.class_weights):
            yield Fault("class_weights", "are all 0: nothing would be drawn")


@dataclass(frozen=True, slots=True, eq=False)
class Sampler:
    """A sampling of a set with these labels."""

    spec: Sampling
    labels: NDArray[np.int64]  # of all rows

    def epoch(self, seed: int, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of an epoch in their order, as many as there are rows.

        Args:
            seed: of the order.
            epoch: its number.
            rows: training images.
        """
        if self.spec.weighs:
            return self._drawn(seed, epoch, rows)
        repeats = self.spec.repeats
        some = permutation(seed, epoch, rows)[: -(-len(rows) // repeats)]
        copies = np.arange(repeats) * len(self.labels)
        return (some[:, None] + copies[None, :]).reshape(-1)[: len(rows)]

    def _drawn(self, seed: int, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        cumulated = np.cumsum(self._weights(rows))
        chance = uniforms(seed ^ _STREAM, epoch, np.arange(len(rows)), 1)[:, 0]
        found = np.searchsorted(cumulated, chance * cumulated[-1], side="right")
        drawn = rows[np.minimum(found, len(rows) - 1)]
        order = np.argsort(drawn, kind="stable")
        _, first, counts = np.unique(drawn[order], return_index=True, return_counts=True)
        copy = np.empty(len(rows), np.int64)
        copy[order] = np.arange(len(rows)) - np.repeat(first, counts)
        return drawn + copy * len(self.labels)

    def _weights(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        own = self.labels[rows]
        drawn = (own != NO_LABEL) if self.spec.labelled_only else np.ones(len(own))
        if self.spec.class_weights:  # label -1 is the last
            return np.asarray([*self.spec.class_weights, 1.0])[own] * drawn
        _, number, counts = np.unique(own, return_inverse=True, return_counts=True)
        return np.asarray(counts[number] ** -float(self.spec.balance) * drawn)
