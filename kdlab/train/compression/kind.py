"""The base of all compressions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal

from torch import Tensor, nn

from kdlab.config.spec import Range, Spec
from kdlab.papers.ec_dnn.round_schedule import StepWeight


class CompressionSpec(Spec, ABC):
    """Base of all compressions: iterations, a weight that may rise, and local training data.

    mu: share of the local data.
    subset: the same part in all rounds, or a new one in each.
    """

    p_iterations: Annotated[int, Range(ge=1)] | None
    p_fraction: float
    mu: float = 1.0
    subset: Literal["fixed", "drawn"] = "drawn"

    @property
    def in_line(self) -> bool:
        """True where its batches are those of local training: with all of the local data."""
        return self.mu == 1

    @abstractmethod
    def weights(self) -> StepWeight:
        """Return beta of Eq. 6 by compression."""

    def reduce(self, net: nn.Module) -> None:
        """Give the weights of a compressed model their final form, in place; by default unchanged.

        Called after its iterations; local training continues from the result.
        """


def matrices(net: nn.Module) -> Iterator[Tensor]:
    """Yield the weights of convolutions and linear layers: (out, ...), not copied."""
    for module in net.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear):
            yield module.weight
