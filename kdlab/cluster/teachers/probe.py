"""Two checks that a teacher is the right one, before any student trusts it.

Its data, where inputs travel by reference: the digest of all pixels and labels, the
augmentation, and the hash of the first samples' views as this machine makes them.
Its answers: the logits of a few synthetic images, against those of the process that
started the pool. They reveal other weights, a wrong precision or numbers that are not
finite, on any machine.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import words
from kdlab.data.images import ImageData

_DECODERS = ("pillow", "simplejpeg", "torch", "numpy")
_IMAGES = 4
_NUMBERS = 1024  # of each answer: enough, even of a million
_ALLOWED_ROW = 0.5  # of a row's size; a row of another image differs by more
_ALLOWED = 0.05  # of the reference's size; half precision on other devices differs by less


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIdentity:
    """Identity of a data set: equal where the same (id, epoch) means the same bytes."""

    digest: str
    images: int
    classes: tuple[str, ...]
    augment: str
    views: str  # hash of the first views
    made_by: str = ""  # versions of the decoders, for messages


def identity_of(data: ImageData) -> DataIdentity:
    """Compute the identity of a data set, which a teacher's must equal.

    The digest covers every pixel and label: a single file more or less shifts the ids of all
    that follow it, and may leave the first views unchanged.
    """
    views = np.ascontiguousarray(data.views(data.train[:16], 0))
    return DataIdentity(
        digest=data.digest,
        images=len(data.labels),
        classes=data.classes,
        augment=data.augment.fingerprint() + (" copies" if data.sampling.active else ""),
        views=hashlib.sha256(views.tobytes()).hexdigest()[:16],
        made_by=", ".join(f"{name} {version(name)}" for name in _DECODERS),
    )


def data_difference(loaded: DataIdentity, expected: DataIdentity) -> str:
    """How a teacher's data differ from the student's; empty where they are equal."""
    if loaded.classes != expected.classes:
        return (
            f"its classes are {_few(loaded.classes)} ({len(loaded.classes)}), the "
            f"student's {_few(expected.classes)} ({len(expected.classes)})"
        )
    if loaded.images != expected.images:
        return f"it has {loaded.images} images, the student {expected.images}"
    if loaded.digest != expected.digest:
        return (
            f"its {loaded.images} images or their labels differ (digest "
            f"{loaded.digest}, the student's {expected.digest})"
        )
    if loaded.augment != expected.augment:
        return (
            "it augments or samples them in another way, or with another version of kdlab"
        )
    if loaded.views != expected.views:
        return (
            f"it makes other views of the same images, with {loaded.made_by}; the student has "
            f"{expected.made_by}"
        )
    return ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def probe_images(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """(4, C, H, W) uint8 noise, equal on every machine and without any data set."""
    count = math.prod(shape)
    noise = words(0, 0, np.arange(_IMAGES, dtype=np.int64), -(-count // 8))
    return noise.view(np.uint8)[:, :count].reshape(_IMAGES, *shape)


def proof_of(answers: NDArray[np.float32]) -> list[list[float]]:
    """At most 1024 evenly spaced columns of (4, D) answers to the probe images."""
    stride = -(-answers.shape[1] // _NUMBERS)
    thinned: list[list[float]] = answers[:, ::stride].tolist()
    return thinned


def difference_of(answer: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    """Root mean square of the difference of two answers, relative to their size.

    0 where they may come from the same model on other devices or in another precision, as a whole
    and row by row. Means over the classes are subtracted: logits are defined up to a constant.
    """
    if answer.shape != reference.shape:
        return math.inf
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (answer, reference))
    error, size = _distance(a, b)
    if not _may_be_equal(error, size):
        return error / max(size, 1e-9)
    sizes = np.maximum(np.sqrt((b * b).mean(axis=1)), max(size, 1e-9))
    worst = float((np.sqrt(((a - b) ** 2).mean(axis=1)) / sizes).max(initial=0.0))
    return worst if worst > _ALLOWED_ROW else 0.0


def disagreement(
    answer: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]
) -> str:
    """Why a teacher's answer to the probe images is refused; empty where it is right.

    An empty reference accepts all (emulated teachers have no model).
    """
    if not reference:
        return ""
    shapes = [(len(rows), len(rows[0]) if rows else 0) for rows in (answer, reference)]
    if shapes[0] != shapes[1]:
        return f"its answer to the probe has shape {shapes[0]}, expected {shapes[1]}"
    logits, expected = np.array(answer, np.float64), np.array(reference, np.float64)
    bad = int((~np.isfinite(logits)).sum())
    if bad:
        return f"{bad} of {logits.size} numbers of its answer to the probe are not finite"
    error, size = _distance(logits, expected)
    if _may_be_equal(error, size):
        return ""
    return (
        f"its answer to the probe differs by {error:.4g} (root mean square) from the "
        f"reference of size {size:.4g}; {_ALLOWED:.0%} is allowed. It has other weights, or "
        "computes in a precision that is too low"
    )


def _distance(
    answer: NDArray[np.floating], reference: NDArray[np.floating]
) -> tuple[float, float]:
    """Root mean squares of the difference and of the reference."""
    error = np.sqrt(np.mean((answer - reference) ** 2))
    return float(error), float(np.sqrt(np.mean(reference**2)))


def _may_be_equal(error: float, size: float) -> bool:
    """True where another device or precision can explain the difference."""
    return error <= _ALLOWED * size + 1e-3
