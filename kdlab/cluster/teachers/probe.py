"""Two proofs that a teacher is the right one, before any student trusts it.

By its data, where inputs travel by reference: the digest of all pixels and labels, the
augmentation, and the hash of the first samples' views as this machine makes them.
By its answers: the logits of a few made-up images, against those of the process that
started the pool. Other weights, a wrong precision or numbers that are not finite show
there, whatever the machine.
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
_NUMBERS = 1024  # of each answer: enough, also where one has a million
_ALLOWED_ROW = 0.5  # of a row's size: another image's row is further away
_ALLOWED = 0.05  # of the reference's own size: half precision on other devices stays below


@dataclass(frozen=True, slots=True, kw_only=True)
class DataIdentity:
    """Equal where the same (id, epoch) means the same bytes."""

    digest: str
    images: int
    classes: tuple[str, ...]
    augment: str
    views: str  # hash of the first ones
    made_by: str = ""  # versions of what decodes and resizes, for people


def identity_of(data: ImageData) -> DataIdentity:
    """What a teacher's data must equal.

    The digest is of every pixel and label: a single file more or less shifts the ids of
    all that follow it, and may leave the first views as they are.
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


def other_data(found: DataIdentity, expected: DataIdentity) -> str:
    """How a teacher's data differ from the student's; empty when they are the same."""
    if found.classes != expected.classes:
        return (
            f"its classes are {_few(found.classes)} ({len(found.classes)}), the "
            f"student's {_few(expected.classes)} ({len(expected.classes)})"
        )
    if found.images != expected.images:
        return f"it has {found.images} images, the student {expected.images}"
    if found.digest != expected.digest:
        return (
            f"its {found.images} images or their labels differ (digest "
            f"{found.digest}, the student's {expected.digest})"
        )
    if found.augment != expected.augment:
        return (
            "it augments or samples them in another way, or with another version of kdlab"
        )
    if found.views != expected.views:
        return (
            f"it makes other views of the same images, with {found.made_by}; the student has "
            f"{expected.made_by}"
        )
    return ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def probe_images(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """(4, C, H, W) noise, the same on every machine and without any data set."""
    count = math.prod(shape)
    noise = words(0, 0, np.arange(_IMAGES, dtype=np.int64), -(-count // 8))
    return noise.view(np.uint8)[:, :count].reshape(_IMAGES, *shape)


def proof_of(answers: NDArray[np.float32]) -> list[list[float]]:
    """At most 1024 columns, evenly spread, of (4, D) answers to the probe images."""
    stride = -(-answers.shape[1] // _NUMBERS)
    thinned: list[list[float]] = answers[:, ::stride].tolist()
    return thinned


def difference_of(answer: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Root mean square between two answers to the same samples, over their size.

    0 where they may come from the same model on other devices or in another precision: as a whole,
    and row by row. Their means over the classes are left out: logits are known up to that.
    """
    if answer.shape != other.shape:
        return math.inf
    a, b = (x - x.mean(axis=1, keepdims=True) for x in (answer, other))
    error, size = _distance(a, b)
    if not _may_be_equal(error, size):
        return error / max(size, 1e-9)
    sizes = np.maximum(np.sqrt((b * b).mean(axis=1)), max(size, 1e-9))
    worst = float((np.sqrt(((a - b) ** 2).mean(axis=1)) / sizes).max(initial=0.0))
    return worst if worst > _ALLOWED_ROW else 0.0


def disagreement(
    answer: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]
) -> str:
    """Why a teacher's answer to the probe images is refused; empty when it is right.

    An empty reference asks for nothing (emulated teachers have no model).
    """
    if not reference:
        return ""
    shapes = [(len(rows), len(rows[0]) if rows else 0) for rows in (answer, reference)]
    if shapes[0] != shapes[1]:
        return f"its answer to the probe has shape {shapes[0]}, expected {shapes[1]}"
    found, right = np.array(answer, np.float64), np.array(reference, np.float64)
    bad = int((~np.isfinite(found)).sum())
    if bad:
        return f"{bad} of {found.size} numbers of its answer to the probe are not finite"
    error, size = _distance(found, right)
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
    """Another device or precision makes no more than this."""
    return error <= _ALLOWED * size + 1e-3
