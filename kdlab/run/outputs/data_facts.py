"""Facts of a data set that checks need: duplicates, broken images, sizes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from kdlab.checks.data import DataFacts, Pairs
from kdlab.data.encoded.pictures import EncodedData, EncodedPictures
from kdlab.data.images import ImageData
from kdlab.data.splits import NO_LABEL, by_class

_LOOKED_AT = 5000  # images decoded to find broken ones
_EACH = 64  # images decoded at a time
_READ = 256e6  # bytes that a run reads before it begins, to find duplicates


def facts_of(
    data: ImageData,
    broken: tuple[int, Sequence[str]] | None = None,
    most: float = _READ,
) -> DataFacts:
    """Collect all facts of a data set that need no teacher.

    Args:
        data: the set.
        broken: number of images decoded, and those that cannot be; None: not searched for.
        most: bytes to read; larger sets are not searched for duplicates.
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
    """Return the pictures of a set that is kept encoded, else None."""
    return data.inputs if isinstance(data, EncodedData) else None


def shorter_side(data: ImageData) -> float | None:
    """Return the median of the originals' shorter sides in pixels; None where unknown."""
    if (pictures := store_of(data)) is None:
        return None
    index = pictures.store.index
    sides = np.minimum(index.height, index.width)
    return float(np.median(sides[sides > 0])) if (sides > 0).any() else None


def image_name(data: ImageData, row: int) -> str:
    """Return the path of an image, or its number in a set that is kept decoded."""
    pictures = store_of(data)
    return f"image {row}" if pictures is None else pictures.store.location(row)


def broken_in(
    data: ImageData, known: Sequence[str], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Decode images, a sample of large sets; return their number and those that cannot be decoded.

    `known` are the broken images found when the set was indexed.
    """
    pictures = store_of(data)
    if pictures is None:  # all were decoded
        return len(data.labels), list(known)
    every = np.flatnonzero(pictures.store.index.height >= 0)
    some, _ = by_class(every, data.labels, min(_LOOKED_AT, len(every)), 0)
    broken = list(known)
    for begin in range(0, len(some), _EACH):
        broken += pictures.decode_all(some[begin : begin + _EACH], say)[1].values()
        if begin and begin % (20 * _EACH) == 0:
            say(f"decoded {begin:,} of {len(some):,} images")
    return len(some) + len(known), broken


def _rows(data: ImageData) -> NDArray[np.int64]:
    """Rows of possible duplicates, training images first; of files those of equal size."""
    rows = np.concatenate([data.train, data.validation, data.test])
    if (pictures := store_of(data)) is None:
        return rows
    sizes = pictures.store.index.size[rows]
    _, number, count = np.unique(sizes, return_inverse=True, return_counts=True)
    return rows[count[number] > 1]


def _bytes_of(data: ImageData, rows: NDArray[np.int64]) -> int:
    """Bytes to read for a comparison; images with a checksum in an archive need none."""
    pictures = store_of(data)
    if pictures is None:
        return len(rows) * int(np.prod(data.shape))
    index = pictures.store.index
    return int(index.size[rows][index.crc[rows] < 0].sum())


def _doubles(data: ImageData, rows: NDArray[np.int64]) -> tuple[Pairs, Pairs]:
    """Pairs of byte-identical images: held-out ones that are in train, and ones of two classes."""
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
    if index.crc[row] >= 0:  # the archive has the checksum
        return int(index.size[row]), int(index.crc[row])
    return sha256(pictures.store.read(row)).digest()
