"""Streaming DiLoCo: fragments of the weights are exchanged in turn, so less travels at a time.

Douillard et al., arXiv:2501.18512: each fragment is synchronised every tau iterations, one after
the other; workers keep their own weights of the others. The paper's fragments are strided blocks of
layers; here whole layers are assigned, the largest first, each to the smallest fragment. Overlap of
communication with computing and four-bit gradients, the paper's other two parts, are not built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Fault, Range, register
from kdlab.train.aggregation.diloco import DiLoCo
from kdlab.train.aggregation.kind import Weights
from kdlab.train.aggregation.weights import MergeInputs, MergeResult, mean_of


@register("train/aggregation/streaming_diloco")
@dataclass(frozen=True, kw_only=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo with one fragment of the weights at a time.

    tau: local iterations between communications of the same fragment.
    optimizer: each worker keeps its momentum over a communication, or starts without.
    outer_lr, outer_momentum: of the outer optimiser.
    fragments: their number; one is exchanged every tau / fragments iterations.
    mixing: share of its own weights that a worker keeps in the fragment (the paper: 0.5).
    """

    fragments: Annotated[int, Range(ge=2, le=64)] = 4
    mixing: Annotated[float, Range(ge=0, lt=1)] = 0.0

    @property
    def parts(self) -> int:
        return self.fragments

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        if self.tau % self.fragments:
            yield Fault(
                "tau", f"is {self.tau}, which {self.fragments} fragments do not divide"
            )

    def fragment(self, number: int, sizes: Mapping[str, int]) -> frozenset[str]:
        """Return the parameters of the fragment in turn: whole layers, of about equal size."""
        layers: dict[str, list[str]] = {}
        for name in sizes:
            layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
        weight = {layer: sum(sizes[n] for n in names) for layer, names in layers.items()}
        fragments, loads = [set[str]() for _ in range(self.fragments)], [0] * self.fragments
        for layer in sorted(weight, key=lambda name: (-weight[name], name)):
            least = loads.index(min(loads))
            fragments[least].update(layers[layer])
            loads[least] += weight[layer]
        return frozenset(fragments[number % self.fragments])

    def travelling(
        self, number: int, state: Weights, parameters: frozenset[str]
    ) -> frozenset[str]:
        turn = self.fragment(number, {name: state[name].numel() for name in parameters})
        return turn | (state.keys() - parameters)

    def merge(self, merging: MergeInputs) -> MergeResult:
        every, memory = sorted(merging.parameters), dict(merging.memory)
        mean = mean_of(merging.states)
        turn = self.fragment(merging.round, {name: mean[name].numel() for name in every})
        moved = {name: mean[name] for name in turn}
        self.step(turn, moved, memory)
        weights = {name: tensor.clone() for name, tensor in merging.local.items()}
        for name, tensor in mean.items():
            if name not in merging.parameters:
                weights[name] = tensor
            elif name in turn:
                weights[name] = (
                    self.mixing * weights[name] + (1 - self.mixing) * moved[name]
                )
        global_weights = mean | {name: memory[f"global.{name}"] for name in every}
        return MergeResult(weights=weights, memory=memory, global_weights=global_weights)
