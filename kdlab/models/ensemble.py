"""Several teachers as one (EDL-Dist, section 1: "an ensemble of separately trained models")."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from kdlab.models.model import Normalised


class EnsembleModel(nn.Module):
    """Answers with the log of the members' mean probabilities, by weight.

    Log-probabilities are logits: their softmax is the mean itself, and a temperature works
    on them as on the logits of one model.
    """

    log_weights: Tensor

    def __init__(self, members: Sequence[Normalised], weights: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        shares = torch.tensor(weights, dtype=torch.float32)
        self.register_buffer("log_weights", (shares / shares.sum()).log())

    def forward(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, classes) logits."""
        each = [log_softmax(member(views).float(), dim=1) for member in self.members]
        weighted = torch.stack(each) + self.log_weights[:, None, None]
        return weighted.logsumexp(dim=0)


class SideBySide(nn.Module):
    """Answers with the logits of each member, one behind the other."""

    def __init__(self, members: Sequence[Normalised]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, members x classes) logits."""
        return torch.cat([member(views).float() for member in self.members], dim=1)


def combined(members: Sequence[Normalised], weights: Sequence[float]) -> nn.Module:
    """The only member itself, or the ensemble of all."""
    return members[0] if len(members) == 1 else EnsembleModel(members, weights)
