"""Choose the images of an epoch: each once, some repeatedly, or drawn by weight.

An image that is shown more than once in an epoch needs a different view each time. So its id has
the number of the copy: row + copy * (images of the set). Everything that depends on an id (views,
references, resends) needs no more than that.
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

COPIES = 1 << 20  # of a row in an epoch, at most: the limit of ids at a teacher
_STREAM = 0x64726177  # keeps these draws apart from those of the order


@dataclass(frozen=True, kw_only=True)
class Sampling(Spec):
    """How training images are drawn for an epoch; by default each of them once.

    repeats: views of each image in an epoch, which shows that many times fewer images: repeated
        augmentation (Hoffer et al. 2020); copies are adjacent.
    balance: 0 leaves classes as frequent as they are, 1 draws all equally often (class-balanced),
        between lies between; images are drawn with replacement. Those without a label count as
        a class.
    class_weights: how often an image of each class is drawn, in their order, instead of `balance`;
        one without a label has weight 1.
    labelled_only: images without a label are not drawn; those with one fill their places.
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
    """Draws the ids of an epoch for a set with these labels."""

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
            return self._draw(seed, epoch, rows)
        repeats = self.spec.repeats
        shown = permutation(seed, epoch, rows)[: -(-len(rows) // repeats)]
        copies = np.arange(repeats) * len(self.labels)
        return (shown[:, None] + copies[None, :]).reshape(-1)[: len(rows)]

    def _draw(self, seed: int, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        cumulated = np.cumsum(self._weights(rows))
        chance = uniforms(seed ^ _STREAM, epoch, np.arange(len(rows)), 1)[:, 0]
        places = np.searchsorted(cumulated, chance * cumulated[-1], side="right")
        drawn = rows[np.minimum(places, len(rows) - 1)]
        order = np.argsort(drawn, kind="stable")
        _, first, counts = np.unique(drawn[order], return_index=True, return_counts=True)
        copy = np.empty(len(rows), np.int64)
        copy[order] = np.arange(len(rows)) - np.repeat(first, counts)
        return drawn + copy * len(self.labels)

    def _weights(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        labels = self.labels[rows]
        drawn = (labels != NO_LABEL) if self.spec.labelled_only else np.ones(len(labels))
        if self.spec.class_weights:  # label -1 is the last
            return np.asarray([*self.spec.class_weights, 1.0])[labels] * drawn
        _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
        return np.asarray(counts[number] ** -float(self.spec.balance) * drawn)
