"""Soft labels in fewer bytes: the k largest log-probabilities and one number for the rest.

The mass outside the top k is spread evenly over the other classes when it is read back.
Exact at T = 1 in the kept classes; at other temperatures the even spread is the
approximation, and `lost_nats` says how large it is. NumPy only: the reader process that
expands what teachers send imports no torch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TopK(NamedTuple):
    values: NDArray[np.float16]  # (N, k) log-probabilities, largest first
    classes: NDArray[np.int32]  # (N, k)
    tail: NDArray[np.float16]  # (N,) log of the mass of all other classes together

    def nonsense(self, num_classes: int) -> str:
        """Why these are no soft labels of so many classes; empty when they are.

        Raises:
            IndexError: not even the shapes fit.
        """
        count, k = self.values.shape
        if self.classes.shape != (count, k) or self.tail.shape != (count,) or not k:
            raise IndexError(f"shapes {[a.shape for a in self]}")
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
    return TopK(small, top.astype(np.int32), tail.astype(np.float16))


def expand(small: TopK, num_classes: int) -> NDArray[np.float32]:
    """(N, num_classes) logits (log-probabilities) again."""
    rest = num_classes - small.values.shape[1]
    each = small.tail.astype(np.float32) - np.float32(np.log(rest))
    full = np.repeat(each[:, None], num_classes, axis=1)
    np.put_along_axis(
        full, small.classes.astype(np.int64), small.values.astype(np.float32), axis=1
    )
    return full


def lost_nats(logits: NDArray[np.floating], k: int) -> float:
    """KL divergence from the full distribution to what is read back, in nats per sample."""
    log_p = log_probabilities(logits)
    log_q = log_probabilities(expand(compress(logits, k), logits.shape[1]))
    return float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean())
