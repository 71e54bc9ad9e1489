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
    """How the answers of several models become one.

    by: `probabilities` or `logits`: their mean by weight. `best`: the whole answer of the model
        with the largest weight for the class that the mean probabilities take the image for.
    weights: of each model one number, or one for each class; positive.
    """

    weights: tuple[tuple[float, ...], ...]
    by: CombinedBy = "probabilities"

    @classmethod
    def of(cls, weights: Sequence[float]) -> "Combination":
        """The mean probabilities by one weight for each model."""
        return cls(tuple((float(weight),) for weight in weights))


class EnsembleModel(nn.Module):
    """Answers with logits that are made of all members'.

    Of mean probabilities it answers with the log: their softmax is the mean itself, and a
    temperature works on them as on the logits of one model.

    Args:
        members: the models.
        combination: of those that have logits.
        logits: of each member, where inner outputs stand behind them: those come behind the
            logits of all, member by member. None: there are no others.
    """

    shares: Tensor  # (members, 1, classes or 1); the members' sum to 1

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
        """How it combines: kept engines go by what a network says of itself."""
        return f"by={self.by}, logits={self.logits}"

    def forward(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, classes) logits, and what stands behind them."""
        rows = [member(views).float() for member in self.members]
        if self.logits is None:
            return self._as_one(rows)
        known = [row[:, :own] for row, own in zip(rows, self.logits, strict=True) if own]
        inner = [row[:, own:] for row, own in zip(rows, self.logits, strict=True)]
        said = known if len(known) < 2 else [self._as_one(known)]
        return torch.cat([*said, *inner], dim=1)

    def _as_one(self, logits: Sequence[Tensor]) -> Tensor:
        each = torch.stack([*logits])
        if self.by == "logits":  # a number added to all of a member's says nothing
            centred = each - each.mean(dim=2, keepdim=True)
            return (centred * self.shares).sum(0)
        mean = (log_softmax(each, dim=2) + self.shares.log()).logsumexp(dim=0)
        if self.by == "probabilities":
            return mean
        taken_for = mean.argmax(1)  # (N,)
        best = self.shares[:, 0, taken_for].argmax(0)
        return each[best, torch.arange(len(best), device=best.device)]


def combined(members: Sequence[Normalised], combination: Combination) -> nn.Module:
    """The only member itself, or the ensemble of all."""
    if len(members) == 1:
        return members[0]
    tapped = [member.net for member in members if isinstance(member.net, Tapped)]
    return EnsembleModel(members, combination, [net.classes for net in tapped] or None)
