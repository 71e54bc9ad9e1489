"""Which samples are trained on, validated on and tested on."""

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import permutation

TRAIN, VALIDATION, TEST = 0, 1, 2
NO_LABEL = -1  # of an image without one


def by_class(
    ids: NDArray[np.int64], labels: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`count` ids with every class in its share, and the rest; both sorted."""
    shuffled = permutation(seed, 0, ids)
    # The i-th of the m samples of a class stands at (i + 0.5) / m: sorting by that
    # place takes the classes in turn, in proportion to their size.
    own = labels[shuffled]
    by_label = np.argsort(own, kind="stable")
    _, begin, count_of = np.unique(own[by_label], return_index=True, return_counts=True)
    within = np.arange(len(ids)) - np.repeat(begin, count_of)  # its number in its class
    place = np.empty(len(ids))
    place[by_label] = (within + 0.5) / np.repeat(count_of, count_of)
    order = shuffled[np.argsort(place, kind="stable")]
    return np.sort(order[:count]), np.sort(order[count:])
