"""Split samples into train, validation and test."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import permutation

TRAIN, VALIDATION, TEST = 0, 1, 2
NO_LABEL = -1  # of an image without a label
NAMES = ("train", "validation", "test")
Ids = NDArray[np.int64]


def by_class(
    ids: NDArray[np.int64], labels: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `count` ids with all classes in proportion; return them and the rest, both sorted."""
    shuffled = permutation(seed, 0, ids)
    # The i-th of the m samples of a class stands at (i + 0.5) / m: sorting by that
    # place takes the classes in turn, in proportion to their size.
    by_id = labels[shuffled]
    by_label = np.argsort(by_id, kind="stable")
    _, begin, count_of = np.unique(by_id[by_label], return_index=True, return_counts=True)
    within = np.arange(len(ids)) - np.repeat(begin, count_of)  # its number in its class
    place = np.empty(len(ids))
    place[by_label] = (within + 0.5) / np.repeat(count_of, count_of)
    order = shuffled[np.argsort(place, kind="stable")]
    return np.sort(order[:count]), np.sort(order[count:])


def completed(
    labels: NDArray[np.int64],
    split: NDArray[np.uint8],
    shares: tuple[float, float],
    seed: int,
) -> tuple[Ids, Ids, Ids]:
    """Ids of train, validation and test; a missing part is drawn from train.

    Args:
        labels: (N,) of all samples.
        split: (N,) of all samples, as the set defines it.
        shares: of the labelled training samples that validation and test get, class by class.
        seed: of the draw.
    """
    parts = [np.flatnonzero(split == part) for part in (TRAIN, VALIDATION, TEST)]
    for part, share, own_seed in (
        (TEST, shares[1], seed + 2),
        (VALIDATION, shares[0], seed),
    ):
        if len(parts[part]) or not share:
            continue
        has_label = labels[parts[TRAIN]] != NO_LABEL
        labelled, unlabelled = parts[TRAIN][has_label], parts[TRAIN][~has_label]
        count = round(share * len(labelled))
        parts[part], rest = by_class(labelled, labels, count, own_seed)
        parts[TRAIN] = np.sort(np.concatenate([rest, unlabelled]))
    train, validation, test = parts
    return train, validation, test


def origin(
    names: Sequence[str], brought: Collection[int], parts: Sequence[Ids], seed: int
) -> str:
    """Describe the origin of the splits in a line.

    Args:
        names: of files and folders that set a split; folders end with a slash.
        brought: parts that the set defines.
        parts: ids of train, validation and test.
        seed: of the draw of the others.
    """
    total = max(1, sum(map(len, parts)))
    shares = [f"{NAMES[k]} {100 * len(ids) / total:.0f}" for k, ids in enumerate(parts)]
    if not names:
        return f"no split found: {', '.join(shares)} % drawn with seed {seed}"
    where = "folders" if all(name.endswith("/") for name in names) else "data"
    line = f"split taken from your {where}: {', '.join(names)}"
    drawn = [k for k in (VALIDATION, TEST) if k not in brought and len(parts[k])]
    counts = " and ".join(f"{len(parts[k]):,} of train for {NAMES[k]}" for k in drawn)
    return line + (f"; drawn with seed {seed}: {counts}" if drawn else "")
