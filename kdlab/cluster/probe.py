"""Two proofs that a teacher is the right one, before any student trusts it.

By its views: the hash of the first samples' views, where inputs travel by reference.
By its answers: the logits of a few made-up images, against those of the process that
started the pool. Other weights, a wrong precision or numbers that are not finite show
there, whatever the machine.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import words
from kdlab.data.images import ImageData

_IMAGES = 4
_NUMBERS = 1024  # of each answer: enough, also where one has a million
_ALLOWED = 0.05  # of the reference's own size: half precision on other devices stays below


def probe_of(data: ImageData) -> str:
    """16 hex digits of the first views; equal where references mean the same bytes."""
    ids = data.train[:16]
    views = np.ascontiguousarray(data.views(ids, 0))
    return hashlib.sha256(views.tobytes()).hexdigest()[:16]


def probe_images(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """(4, C, H, W) noise, the same on every machine and without any data set."""
    count = math.prod(shape)
    noise = words(0, 0, np.arange(_IMAGES, dtype=np.int64), -(-count // 8))
    return noise.view(np.uint8)[:, :count].reshape(_IMAGES, *shape)


def proof_of(answers: NDArray[np.float32]) -> list[list[float]]:
    """Of (4, D) answers to the probe images at most 1024 columns, evenly spread."""
    stride = -(-answers.shape[1] // _NUMBERS)
    thinned: list[list[float]] = answers[:, ::stride].tolist()
    return thinned


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
    pairs = [
        (a, b)
        for mine, right in zip(answer, reference, strict=True)
        for a, b in zip(mine, right, strict=True)
    ]
    bad = sum(not math.isfinite(a) for a, _ in pairs)
    if bad:
        return f"{bad} of {len(pairs)} numbers of its answer to the probe are not finite"
    size = math.sqrt(sum(b * b for _, b in pairs) / len(pairs))
    error = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs))
    if error <= _ALLOWED * size + 1e-3:
        return ""
    return (
        f"its answer to the probe differs by {error:.4g} (root mean square) from the "
        f"reference of size {size:.4g}; {_ALLOWED:.0%} is allowed. It has other weights, or "
        "computes in a precision that is too low"
    )
