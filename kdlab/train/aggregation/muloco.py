"""MuLoCo: DiLoCo with Muon as inner optimiser, and deltas of two bits with error feedback.

Thérien et al., arXiv:2505.23725: Muon's orthogonalised steps make better pseudo-gradients, which
tolerate quantisation; a worker adds what quantisation loses to its next delta. The levels of each
tensor are statistical: means of equal parts of its sorted numbers, so that no delta grows by being
quantised. Every worker fetches the codes of all others; the paper's all-reduce would quantise a
second time, after the mean.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from kdlab.config import Range, register
from kdlab.config.spec import POSITIVE
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.train.aggregation.diloco import DiLoCo
from kdlab.train.aggregation.kind import Weights
from kdlab.train.aggregation.weights import OWN
from kdlab.train.recipe import Recipe

_CODES, _LEVELS = ".codes", ".levels"  # behind the name of a parameter


@register("train/aggregation/muloco")
@dataclass(frozen=True, kw_only=True)
class MuLoCo(DiLoCo):
    """DiLoCo whose workers train with Muon and send few bits of what they have learned.

    Local training takes timm's Muon in place of `train.optimizer`: Newton-Schulz for matrices and
    convolutions (as matrices), AdamW for norms, biases, convolutions of one channel, and
    matrices that are thinner than 4 or longer than 128 times their width.

    tau: local iterations between communications (the paper: 30).
    optimizer: each worker keeps its momentum over a communication (the paper), or starts without.
    outer_lr, outer_momentum: of the outer optimiser, as the authors' code has them.
    inner_lr: of Muon, in place of `train.lr`.
    bits: of each number of a delta; norms' statistics travel as they are.
    feedback: share of what quantisation has lost that is added to the next delta.
    """

    tau: Annotated[int, Range(ge=1)] = 30
    outer_momentum: Annotated[float, Range(ge=0, lt=1)] = 0.6
    inner_lr: Annotated[float, POSITIVE] = 0.02
    bits: Annotated[int, Range(ge=1, le=8)] = 2
    feedback: Annotated[float, Range(ge=0, le=1)] = 1.0

    encodes: ClassVar[bool] = True
    diverges_by = ("aggregation.inner_lr",)  # train.lr is not used

    @property
    def combining(self) -> Combining:
        return "all_models"

    def local_recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe,
            optimizer="timm/muon",
            optimizer_options={"nesterov": True},
            lr=self.inner_lr,
            momentum=0.95,
            nesterov=False,
        )

    def encode(
        self, state: Weights, memory: Weights, parameters: frozenset[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        sent = {name: state[name] for name in state if name not in parameters}
        after = dict(memory)
        for name in sorted(parameters):
            delta = memory[f"global.{name}"] - state[name]
            lost = memory.get(f"{OWN}lost.{name}")
            if lost is not None:
                delta = delta + self.feedback * lost
            codes, levels = quantised(delta, self.bits)
            after[f"{OWN}lost.{name}"] = delta - levels[codes].view_as(delta)
            sent[name + _CODES], sent[name + _LEVELS] = packed(codes, self.bits), levels
        return sent, after

    def decode(self, sent: Weights, memory: Weights) -> dict[str, Tensor]:
        state = {k: v for k, v in sent.items() if not k.endswith((_CODES, _LEVELS))}
        for coded in (name for name in sent if name.endswith(_CODES)):
            name = coded.removesuffix(_CODES)
            before = memory[f"global.{name}"]
            codes = unpacked(sent[coded], self.bits, before.numel())
            state[name] = before - sent[name + _LEVELS][codes].view_as(before)
        return state


def quantised(delta: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the code of each number, flat, and the level of each code: their mean."""
    flat, levels = delta.flatten(), 1 << bits
    codes = torch.empty(len(flat), dtype=torch.long)
    codes[flat.argsort(stable=True)] = torch.arange(len(flat)) * levels // len(flat)
    counts = codes.bincount(minlength=levels).clamp_min(1)
    return codes, torch.zeros(levels).to(flat).index_add(0, codes, flat) / counts.to(flat)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Pack codes into bytes, the lowest bit first."""
    rows = codes[:, None] >> torch.arange(bits) & 1
    line = torch.nn.functional.pad(rows.flatten(), (0, -rows.numel() % 8)).view(-1, 8)
    return (line << torch.arange(8)).sum(1).to(torch.uint8)


def unpacked(line: Tensor, bits: int, count: int) -> Tensor:
    """Unpack `count` codes; the inverse of `packed`."""
    rows = (line.long()[:, None] >> torch.arange(8) & 1).flatten()[: count * bits]
    return (rows.view(count, bits) << torch.arange(bits)).sum(1)
