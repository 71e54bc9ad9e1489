"""Soft labels in fewer bytes: the k largest log-probabilities, or k sampled classes.

`compress` spreads the mass outside the top k evenly over the other classes when it is read back.
The k classes are exact at T = 1; at other temperatures the even spread is an approximation, whose
error `lost_nats` measures.

`draw` samples classes by their probability, so labels are unbiased at T = 1, while top k alone
shifts the mean of many labels (Anshumann et al. 2025, arXiv 2503.16870, section 3). The paper's
draws are independent; these are at even distances with one random start (systematic sampling),
which is as unbiased, and contains every class of probability 1/k or more.

NumPy only: the reader process that expands teachers' labels imports no torch.
"""

import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TopK(NamedTuple):
    values: NDArray[np.float16]  # (N, k) log-probabilities, largest first
    classes: NDArray[np.integer]  # (N, k), of the smallest type that holds them
    tail: NDArray[np.float16]  # (N,) log of the mass of all other classes together

    def nonsense(self, num_classes: int) -> str:
        """Reason why these are no soft labels of `num_classes` classes; empty where they are valid.

        Raises:
            IndexError: not even the shapes fit.
        """
        count, k = self.values.shape
        if self.classes.shape != (count, k) or self.tail.shape != (count,) or not k:
            raise IndexError(f"shapes {[a.shape for a in self]}")
        if self.classes.dtype.kind not in "iu":
            return f"class numbers of type {self.classes.dtype}"
        if k >= num_classes or self.classes.min() < 0 or self.classes.max() >= num_classes:
            return f"{k} classes up to number {self.classes.max()} of {num_classes}"
        ordered = np.sort(self.classes, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            return "a class twice in one label"
        logarithms = np.column_stack([self.values, self.tail]).astype(np.float64)
        with np.errstate(over="ignore"):  # infinite, and so not 1
            mass = np.exp(logarithms).sum(axis=1)
        worst = mass[np.argmax(np.abs(mass - 1))]  # NaN is the worst of all
        if not abs(worst - 1) <= _MASS_OFF:
            return f"the probabilities of a label add up to {worst:.3g}"
        return ""


class SampledLabels(NamedTuple):
    """k draws of each label as classes and their counts; unused places have count 0."""

    drawn: NDArray[np.integer]  # (N, k) classes, the most frequent first
    times: NDArray[np.uint8]  # (N, k)

    def nonsense(self, num_classes: int) -> str:
        """Reason why these are no labels of `num_classes` classes; empty where they are valid.

        Raises:
            IndexError: not even the shapes fit.
        """
        if self.drawn.shape != self.times.shape or self.drawn.ndim != 2:
            raise IndexError(f"shapes {[a.shape for a in self]}")
        if self.drawn.dtype.kind not in "iu" or self.times.dtype != np.uint8:
            return f"types {[str(a.dtype) for a in self]}"
        k = self.drawn.shape[1]
        if not k or self.drawn.min() < 0 or self.drawn.max() >= num_classes:
            return f"{k} classes up to number {self.drawn.max()} of {num_classes}"
        used = np.where(self.times > 0, self.drawn.astype(np.int64), -1 - np.arange(k))
        ordered = np.sort(used, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            return "a class twice in one label"
        sums = self.times.sum(axis=1, dtype=np.int64)
        if (sums != k).any():
            return f"{sums[sums != k][0]} draws in a label of {k}"
        return ""


MOST_DRAWS = 255
_SMALLEST = -30.0  # log of a tail that is numerically empty; finite in float16
_MASS_OFF = 0.05  # from 1: float16 logarithms near 0 are exact to 0.0005, near -8 to 0.008


def log_probabilities(logits: NDArray[np.floating]) -> NDArray[np.float32]:
    """(N, C) -> (N, C), in float32."""
    shifted = logits.astype(np.float32) - logits.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return (shifted - normaliser).astype(np.float32)


def compress(logits: NDArray[np.floating], k: int) -> TopK:
    """(N, C) logits to their k largest classes, 1 <= k < C."""
    log_p = log_probabilities(logits)
    top = np.argpartition(-log_p, k - 1, axis=1)[:, :k]
    values = np.take_along_axis(log_p, top, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    top, values = np.take_along_axis(top, order, 1), np.take_along_axis(values, order, 1)
    rest = np.exp(log_p.astype(np.float64))
    np.put_along_axis(rest, top, 0.0, axis=1)
    tail = np.log(np.maximum(rest.sum(axis=1), np.exp(_SMALLEST)))
    small = np.maximum(values, -6e4).astype(np.float16)  # float16 ends at 65504
    classes = top.astype(class_type(logits.shape[1]))
    return TopK(small, classes, tail.astype(np.float16))


def class_type(num_classes: int) -> type[np.integer]:
    """The smallest integer type for this number of classes."""
    if num_classes <= 2**8:
        return np.uint8
    return np.uint16 if num_classes <= 2**16 else np.int32


def draw(logits: NDArray[np.floating], k: int) -> SampledLabels:
    """Draw k classes of each of (N, C) logits, 1 <= k <= 255; equal logits give equal draws.

    Raises:
        ValueError: a logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise ValueError("logits are not finite: no classes can be drawn")
    cumulated = np.exp(log_probabilities(logits).astype(np.float64)).cumsum(axis=1)
    rows = np.ascontiguousarray(logits)
    # Random start as a function of the label: a repeated run draws the same classes.
    start = np.array([zlib.crc32(row.tobytes()) for row in rows])[:, None] / 2**32
    draws_up_to = np.floor(k * cumulated / cumulated[:, -1:] + start).astype(np.int64)
    draws_up_to[:, -1] = k
    times = np.diff(draws_up_to, axis=1, prepend=0)
    width = min(k, logits.shape[1])
    frequent = np.argsort(-times, axis=1, kind="stable")[:, :width]
    classes = np.zeros((len(rows), k), class_type(logits.shape[1]))
    count = np.zeros((len(rows), k), np.uint8)
    classes[:, :width] = frequent
    count[:, :width] = np.take_along_axis(times, frequent, axis=1)
    return SampledLabels(classes, count)


def expand_drawn(drawn: SampledLabels, num_classes: int) -> NDArray[np.float32]:
    """(N, num_classes) logits whose softmax is the share of each class in the draws."""
    k = drawn.times.shape[1]
    full = np.zeros((len(drawn.times), num_classes), np.float32)
    rows = np.arange(len(full))[:, None]
    np.add.at(full, (rows, drawn.drawn.astype(np.int64)), drawn.times / np.float32(k))
    return np.log(np.maximum(full, np.float32(np.exp(_SMALLEST))))


def expand(small: TopK, num_classes: int) -> NDArray[np.float32]:
    """Expand to (N, num_classes) logits, which are log-probabilities."""
    rest = num_classes - small.values.shape[1]
    each = small.tail.astype(np.float32) - np.float32(np.log(rest))
    full = np.repeat(each[:, None], num_classes, axis=1)
    np.put_along_axis(
        full, small.classes.astype(np.int64), small.values.astype(np.float32), axis=1
    )
    return full


def lost_nats(logits: NDArray[np.floating], k: int) -> float:
    """KL divergence from the full to the compressed distribution, in nats per sample."""
    log_p = log_probabilities(logits)
    log_q = log_probabilities(expand(compress(logits, k), logits.shape[1]))
    return float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean())
