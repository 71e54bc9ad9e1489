"""Standardised features of teachers with different spreads.

A teacher, or a channel, with large numbers would dominate a loss: UNIC (arXiv:2408.05088), Theia
(arXiv:2407.20179) and PHI-S (arXiv:2410.01680) standardise each first.
"""

from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor, nn

BalanceBy = Literal["none", "overall", "channel", "phi"]
_LEAST = 1e-6  # smallest standard deviation: a constant channel has no information
_SILENT = 1e-6  # share of the mean variance: less is rounding


def moments(features: Tensor) -> Tensor:
    """Sum products of channels, and of channels with 1, over rows: (C + 1, C + 1) float64.

    Sums of several batches are added.
    """
    rows = channels_last(features).flatten(0, -2).double().cpu()
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    return rows.T @ rows


def channels_last(features: Tensor) -> Tensor:
    return features.movedim(1, -1) if features.ndim == 4 else features


class Balance(nn.Module):
    """Centres features and divides them by their spread; its buffers are in checkpoints.

    Args:
        moments: of the teacher's features over images (`moments`).
        by: `overall` divides by one spread, `channel` each channel by its own; `phi` rotates the
            principal axes by a Hadamard matrix, after which all channels have one spread.
    """

    mean: Tensor
    turn: Tensor  # factors of channels (C,), or a matrix (C, C)

    def __init__(self, moments: Tensor, by: BalanceBy) -> None:
        super().__init__()
        mean = moments[-1, :-1] / moments[-1, -1]
        covariance = moments[:-1, :-1] / moments[-1, -1] - torch.outer(mean, mean)
        variances = covariance.diagonal().clamp_min(_LEAST**2)
        # A channel that hardly varied would dominate once it does
        silent = variances <= _SILENT * variances.mean()
        turn = variances.rsqrt().masked_fill(silent, 0.0)
        if by != "channel":
            turn = variances.mean().rsqrt().expand(len(variances))
        if by == "phi":  # (1/φ) H Uᵀ of PHI-S, φ² the mean eigenvalue
            _, axes = torch.linalg.eigh(covariance)
            turn = (axes @ hadamard(len(axes))) * turn
        self.register_buffer("mean", mean.float())
        self.register_buffer("turn", turn.float())

    def forward(self, features: Tensor) -> Tensor:
        centred = channels_last(features) - self.mean
        balanced = centred * self.turn if self.turn.ndim == 1 else centred @ self.turn
        return balanced.movedim(-1, 1) if features.ndim == 4 else balanced


def core_of(order: int) -> int | None:
    """Return the order of the Paley matrix to double to a Hadamard matrix; None: none is known."""
    twos = order & -order  # the largest power of two that divides it
    cores = [order // twos * 2**k for k in range(twos.bit_length())]
    return next((n for n in cores if n < 3 or (n % 4 == 0 and _is_prime(n - 1))), None)


def hadamard(order: int) -> Tensor:
    """Construct an orthogonal Hadamard matrix: Paley's, doubled as by Sylvester."""
    core = core_of(order)
    assert core is not None  # checked before (`FeatureLossSpec.misfit`)
    matrix, two = _paley(core), _paley(2)
    while len(matrix) < order:
        matrix = torch.kron(two, matrix)
    return matrix.div(order**0.5)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in takewhile(lambda k: k * k <= n, range(2, n)))


def _paley(order: int) -> Tensor:
    """Construct Paley's matrix I + S of order q + 1, q a prime 3 mod 4, S of Legendre symbols."""
    if order < 3:
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)[:order, :order]
    q = order - 1
    residues = torch.zeros(q, dtype=torch.float64) - 1
    residues[torch.arange(1, q) ** 2 % q] = 1
    residues[0] = 0
    k = torch.arange(q)
    matrix = torch.ones(order, order, dtype=torch.float64)
    matrix[1:, 1:] = residues[(k[None] - k[:, None]) % q]
    matrix[1:, 0] = -1
    matrix[1:, 1:] += torch.eye(q, dtype=torch.float64)
    return matrix
