"""Looks at a data set for what is checked of it: doubles, broken images, sizes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from kdlab.checks.data import DataFacts, Pairs
from kdlab.data.encoded.pictures import EncodedData, EncodedPictures
from kdlab.data.images import ImageData
from kdlab.data.splits import NO_LABEL, by_class

_LOOKED_AT = 5000  # images that are decoded to find broken ones
_EACH = 64  # images that are decoded between two lines of progress
_READ = 256e6  # bytes that a run reads before it begins, to find doubles


def facts_of(
    data: ImageData,
    broken: tuple[int, Sequence[str]] | None = None,
    most: float = _READ,
) -> DataFacts:
    """All that is known of a set without a teacher.

    Args:
        data: the set.
        broken: images that were decoded, and those that cannot be; None: nobody looked.
        most: bytes; of sets for which more would have to be read doubles are not looked for.
    """
    facts = DataFacts.from_data(data).replace(side=shorter_side(data))
    if broken is not None:
        facts = facts.replace(looked_at=broken[0], broken=broken[1])
    rows = _rows(data)
    if _bytes_of(data, rows) > most:
        return facts
    leaks, contradictions = _doubles(data, rows)
    return facts.replace(leaks=leaks, contradictions=contradictions)


def store_of(data: ImageData) -> EncodedPictures | None:
    """The pictures of a set that is kept encoded."""
    return data.inputs if isinstance(data, EncodedData) else None


def shorter_side(data: ImageData) -> float | None:
    """Median of the originals' shorter sides, pixels; None where they are not known."""
    if (pictures := store_of(data)) is None:
        return None
    index = pictures.store.index
    sides = np.minimum(index.height, index.width)
    return float(np.median(sides[sides > 0])) if (sides > 0).any() else None


def image_name(data: ImageData, row: int) -> str:
    """Path of an image, or its number in a set that is kept decoded."""
    pictures = store_of(data)
    return f"image {row}" if pictures is None else pictures.store.location(row)


def broken_in(
    data: ImageData, known: Sequence[str], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """How many images were decoded, and which of them cannot be; a share of very many.

    `known` were found when the set was indexed.
    """
    pictures = store_of(data)
    if pictures is None:  # all of them were
        return len(data.labels), list(known)
    every = np.flatnonzero(pictures.store.index.height >= 0)
    some, _ = by_class(every, data.labels, min(_LOOKED_AT, len(every)), 0)
    found = list(known)
    for begin in range(0, len(some), _EACH):
        found += pictures.decode_all(some[begin : begin + _EACH], say)[1].values()
        if begin and begin % (20 * _EACH) == 0:
            say(f"decoded {begin:,} of {len(some):,} images")
    return len(some) + len(known), found


def _rows(data: ImageData) -> NDArray[np.int64]:
    """Images that may be there twice; of files only those of one size, training images first."""
    rows = np.concatenate([data.train, data.validation, data.test])
    if (pictures := store_of(data)) is None:
        return rows
    sizes = pictures.store.index.size[rows]
    _, number, count = np.unique(sizes, return_inverse=True, return_counts=True)
    return rows[count[number] > 1]


def _bytes_of(data: ImageData, rows: NDArray[np.int64]) -> int:
    """What comparing them reads: nothing of those whose checksum an archive has."""
    pictures = store_of(data)
    if pictures is None:
        return len(rows) * int(np.prod(data.shape))
    index = pictures.store.index
    return int(index.size[rows][index.crc[rows] < 0].sum())


def _doubles(data: ImageData, rows: NDArray[np.int64]) -> tuple[Pairs, Pairs]:
    """Images of validation and test that are in train, and images of two classes, byte by byte."""
    trained = np.isin(rows, data.train)
    same_bytes = defaultdict[object, list[tuple[int, bool]]](list)
    for row, in_train in zip(rows.tolist(), trained.tolist(), strict=True):
        same_bytes[_digest(data, row)].append((row, in_train))
    leaks, unlike = [], []
    for same in same_bytes.values():
        first, first_in_train = same[0]  # train comes first
        for row, in_train in same[1:]:
            pair = image_name(data, row), image_name(data, first)
            if first_in_train and not in_train:
                leaks.append(pair)
            if NO_LABEL not in (labels := {int(data.labels[k]) for k in (row, first)}):
                unlike += [pair] * (len(labels) > 1)
    return leaks, unlike


def _digest(data: ImageData, row: int) -> object:
    pictures = store_of(data)
    if pictures is None:
        return sha256(data.inputs[np.array([row])].tobytes()).digest()
    index = pictures.store.index
    if index.crc[row] >= 0:  # of an archive: known without reading
        return int(index.size[row]), int(index.crc[row])
    return sha256(pictures.store.read(row)).digest()
