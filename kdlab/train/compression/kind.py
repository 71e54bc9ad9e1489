"""The base of all compressions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated

from torch import Tensor, nn

from kdlab.config.spec import Range, Spec
from kdlab.papers.ec_dnn.round_schedule import StepWeight


class CompressionSpec(Spec, ABC):
    """What every compression has: a number of iterations, and a weight that may rise."""

    p_iterations: Annotated[int, Range(ge=1)] | None
    p_fraction: float

    @property
    def in_line(self) -> bool:
        """Whether it takes its batches from those of the training."""
        return False

    @abstractmethod
    def weights(self) -> StepWeight:
        """Beta of Eq. 6 by compression."""

    def reduce(self, net: nn.Module) -> None:
        """Give a compressed model's weights their final form, in place; by default as they are.

        Called when its iterations are done; local training then goes on from there.
        """

    @abstractmethod
    def build(self) -> object: ...


def matrices(net: nn.Module) -> Iterator[Tensor]:
    """Weights of convolutions and linear layers, as they are in the network: (out, ...)."""
    for module in net.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            yield module.weight
