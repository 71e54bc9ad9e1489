"""Several teachers as one (EDL-Dist, section 1: "an ensemble of separately trained models")."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from kdlab.models.model import Normalised
from kdlab.models.with_features import Tapped

CombinedBy = Literal["probabilities", "logits", "best"]


@dataclass(frozen=True, slots=True)
class Combination:
    """How the answers of several models are combined.

    by: `probabilities` or `logits`: their weighted mean. `best`: the answer of the model with the
        largest weight for the likeliest class of the mean probabilities.
    weights: for each model one positive number, or one for each class.
    """

    weights: tuple[tuple[float, ...], ...]
    by: CombinedBy = "probabilities"

    @classmethod
    def from_weights(cls, weights: Sequence[float]) -> "Combination":
        """Create the weighted mean of probabilities, of one weight for each model."""
        return cls(tuple((float(weight),) for weight in weights))


class EnsembleModel(nn.Module):
    """Combines the logits of all members.

    For mean probabilities it returns their log: its softmax is the mean itself, and a
    temperature acts as on the logits of one model.

    Args:
        members: the models.
        combination: of the members that have logits.
        logits: number of logits of each member whose rows have inner outputs after them; these
            follow the combined logits, member by member. None: rows are logits alone.
    """

    shares: Tensor  # (members, 1, classes or 1); sums to 1 over members

    def __init__(
        self,
        members: Sequence[Normalised],
        combination: Combination,
        logits: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.members, self.logits = nn.ModuleList(members), logits
        weights = torch.tensor(combination.weights, dtype=torch.float32)
        self.by = combination.by
        self.register_buffer("shares", (weights / weights.sum(0))[:, None])

    def extra_repr(self) -> str:
        """Show how it combines: kept engines are identified by the repr of a network."""
        return f"by={self.by}, logits={self.logits}"

    def forward(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, classes) logits, followed by inner outputs."""
        rows = [member(views).float() for member in self.members]
        if self.logits is None:
            return self._combine(rows)
        each = [row[:, :n] for row, n in zip(rows, self.logits, strict=True) if n]
        inner = [row[:, n:] for row, n in zip(rows, self.logits, strict=True)]
        logits = each if len(each) < 2 else [self._combine(each)]
        return torch.cat([*logits, *inner], dim=1)

    def _combine(self, logits: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack([*logits])
        if self.by == "logits":  # a constant added to a member's logits means nothing
            centred = stacked - stacked.mean(dim=2, keepdim=True)
            return (centred * self.shares).sum(0)
        mean = (log_softmax(stacked, dim=2) + self.shares.log()).logsumexp(dim=0)
        if self.by == "probabilities":
            return mean
        taken_for = mean.argmax(1)  # (N,)
        best = self.shares[:, 0, taken_for].argmax(0)
        return stacked[best, torch.arange(len(best), device=best.device)]


def combined(members: Sequence[Normalised], combination: Combination) -> nn.Module:
    """Return the only member itself, or the ensemble of all."""
    if len(members) == 1:
        return members[0]
    tapped = [member.net for member in members if isinstance(member.net, Tapped)]
    return EnsembleModel(members, combination, [net.classes for net in tapped] or None)
