"""The base of all compressions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

from torch import Tensor, nn

from kdlab.config.spec import Range, Spec
from kdlab.papers.ec_dnn.round_schedule import StepWeight


class CompressionSpec(Spec, ABC):
    """What every compression has: iterations, a weight that may rise, and data of the training's.

    mu: share of the local data.
    subset: the same part in all rounds, or another one in each.
    """

    p_iterations: Annotated[int, Range(ge=1)] | None
    p_fraction: float
    mu: float = 1.0
    subset: Literal["fixed", "drawn"] = "drawn"

    @property
    def in_line(self) -> bool:
        """Whether it takes its batches from those of the training: with all of the data."""
        return self.mu == 1

    @abstractmethod
    def weights(self) -> StepWeight:
        """Beta of Eq. 6 by compression."""

    def reduce(self, net: nn.Module) -> None:
        """Give a compressed model's weights their final form, in place; by default as they are.

        Called when its iterations are done; local training then goes on from there.
        """


def matrices(net: nn.Module) -> Iterator[Tensor]:
    """Weights of convolutions and linear layers, as they are in the network: (out, ...)."""
    for module in net.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            yield module.weight
