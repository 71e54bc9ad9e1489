"""An engine: from a network and example views to a function that computes logits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from kdlab.errors import KdlabError

Precision = Literal["fp32", "bf16", "fp16", "int8"]
# (N, C, H, W) uint8 or float, 0 to 255 -> (N, classes) float32
Predict = Callable[[Tensor], Tensor]


class EngineUnusable(KdlabError):
    """An engine cannot compute a network, or not on this machine."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to compute a network.

    name, precision: label, and number format.
    prepare: from a network in evaluation mode, example views (N, C, H, W), and the number of
        threads; raises EngineUnusable, or errors of its library.
    slow_to_prepare: it compiles, for seconds to minutes.
    """

    name: str
    precision: Precision
    prepare: Callable[[nn.Module, Tensor, int], Predict]
    slow_to_prepare: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} {self.precision}"
