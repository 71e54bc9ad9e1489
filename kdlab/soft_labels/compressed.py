"""Soft labels in fewer bytes: the k largest log-probabilities and one number for the rest.

The mass outside the top k is spread evenly over the other classes when it is read back.
Exact at T = 1 in the kept classes; at other temperatures the even spread is the
approximation, and `lost_nats` says how large it is.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


class TopK(NamedTuple):
    values: Tensor  # (N, k) float16 log-probabilities, largest first
    classes: Tensor  # (N, k) int32
    tail: Tensor  # (N,) float16 log of the mass of all other classes together


_SMALLEST = -30.0  # log of a tail that is numerically empty; finite in float16


def compress(logits: Tensor, k: int) -> TopK:
    """(N, C) logits to their k largest classes, 1 <= k < C."""
    log_p = log_softmax(logits.float(), dim=1)
    values, classes = log_p.topk(k, dim=1)
    kept = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, classes, value=True)
    tail = log_p.masked_fill(kept, float("-inf")).logsumexp(dim=1).clamp_min(_SMALLEST)
    return TopK(values.half(), classes.to(torch.int32), tail.half())


def expand(small: TopK, num_classes: int) -> Tensor:
    """(N, num_classes) float32 logits (log-probabilities) again."""
    rest = num_classes - small.values.shape[1]
    each = small.tail.float() - torch.log(torch.tensor(float(rest)))
    full = each[:, None].expand(-1, num_classes).clone()
    return full.scatter_(1, small.classes.long(), small.values.float())


def lost_nats(logits: Tensor, k: int) -> float:
    """KL divergence from the full distribution to what is read back, in nats per sample."""
    log_p = log_softmax(logits.float(), dim=1)
    log_q = log_softmax(expand(compress(logits, k), logits.shape[1]), dim=1)
    return float((log_p.exp() * (log_p - log_q)).sum(dim=1).mean())
