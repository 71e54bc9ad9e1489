"""Features of teachers of unlike spread, standardised.

A teacher whose numbers are large, or a channel whose are, would count for most of a loss: UNIC
(arXiv:2408.05088), Theia (arXiv:2407.20179) and PHI-S (arXiv:2410.01680) standardise each first.
"""

from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor, nn

BalanceBy = Literal["none", "overall", "channel", "phi"]
_LEAST = 1e-6  # of a spread: a channel that never changes says nothing
_SILENT = 1e-6  # of the mean variance: less is rounding, not news


def moments(features: Tensor) -> Tensor:
    """(C + 1, C + 1) sums over rows, of products of channels with each other and with 1; float64.

    Those of several batches are added.
    """
    rows = channels_last(features).flatten(0, -2).double().cpu()
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
    return rows.T @ rows


def channels_last(features: Tensor) -> Tensor:
    return features.movedim(1, -1) if features.ndim == 4 else features


class Balance(nn.Module):
    """Features less their mean, over their spread; its buffers lie in checkpoints.

    Args:
        found: moments of the teacher's features over images.
        by: `overall` divides by one spread, `channel` each channel by its own; `phi` turns the
            principal axes by a Hadamard matrix, so that one spread is every channel's own.
    """

    mean: Tensor
    turn: Tensor  # (C,) that channels are multiplied by, or (C, C)

    def __init__(self, found: Tensor, by: BalanceBy) -> None:
        super().__init__()
        mean = found[-1, :-1] / found[-1, -1]
        covariance = found[:-1, :-1] / found[-1, -1] - torch.outer(mean, mean)
        variances = covariance.diagonal().clamp_min(_LEAST**2)
        # A channel that hardly varied would be all that counts, once it does
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
        made = centred * self.turn if self.turn.ndim == 1 else centred @ self.turn
        return made.movedim(-1, 1) if features.ndim == 4 else made


def core_of(order: int) -> int | None:
    """Order of the Paley matrix that a Hadamard matrix is doubled from; None: none is known."""
    twos = order & -order  # the largest power of two that divides it
    cores = [order // twos * 2**k for k in range(twos.bit_length())]
    return next((n for n in cores if n < 3 or (n % 4 == 0 and _is_prime(n - 1))), None)


def hadamard(order: int) -> Tensor:
    """An orthogonal matrix whose numbers are all of one size: Paley's, doubled by Sylvester."""
    core = core_of(order)
    assert core is not None  # asked before (`FeatureLossSpec.misfit`)
    made, two = _paley(core), _paley(2)
    while len(made) < order:
        made = torch.kron(two, made)
    return made.div(order**0.5)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in takewhile(lambda k: k * k <= n, range(2, n)))


def _paley(order: int) -> Tensor:
    """Paley's matrix of order q + 1, q a prime that is 3 modulo 4: I + S, S of Legendre symbols."""
    if order < 3:
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)[:order, :order]
    q = order - 1
    residues = torch.zeros(q, dtype=torch.float64) - 1
    residues[torch.arange(1, q) ** 2 % q] = 1
    residues[0] = 0
    k = torch.arange(q)
    made = torch.ones(order, order, dtype=torch.float64)
    made[1:, 1:] = residues[(k[None] - k[:, None]) % q]
    made[1:, 0] = -1
    made[1:, 1:] += torch.eye(q, dtype=torch.float64)
    return made
