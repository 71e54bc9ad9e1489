"""Streaming DiLoCo: the weights take turns, so that less travels at a time.

Douillard et al., arXiv:2501.18512: the parameters are in fragments, and each is synchronised every
tau iterations, one after the other; workers go on with what they have of all others. Here as in the
paper's strided pattern fragment k has every k-th tensor. Overlap of communication with computing
and four-bit gradients, the paper's other two parts, change no result of this engine's clock.
"""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Range, register
from kdlab.train.aggregation.diloco import DiLoCo
from kdlab.train.aggregation.weights import Merged, Merging, mean_of


@register("train/aggregation/streaming_diloco")
@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo of one fragment of the weights at a time.

    tau: local iterations between two communications of the same fragment.
    optimizer: each worker keeps its momentum over a communication, or starts without.
    outer_lr, outer_momentum: of the outer optimiser.
    fragments: of the weights; one is exchanged every tau / fragments iterations.
    mixing: share of its own weights that a worker keeps of the fragment (the paper: 0.5).
    """

    fragments: Annotated[int, Range(ge=2, le=64)] = 4
    mixing: Annotated[float, Range(ge=0, lt=1)] = 0.0

    @property
    def parts(self) -> int:
        return self.fragments

    def merge(self, merging: Merging) -> Merged:
        every, memory = sorted(merging.parameters), dict(merging.memory)
        turn = frozenset(every[merging.round % self.fragments :: self.fragments])
        mean = mean_of(merging.states)
        moved = {name: mean[name] for name in turn}
        self.step(turn, moved, memory)
        weights = {name: tensor.clone() for name, tensor in merging.own.items()}
        for name, tensor in mean.items():
            if name not in merging.parameters:
                weights[name] = tensor
            elif name in turn:
                weights[name] = (
                    self.mixing * weights[name] + (1 - self.mixing) * moved[name]
                )
        whole = mean | {name: memory[f"global.{name}"] for name in every}
        return Merged(weights=weights, memory=memory, whole=whole)
