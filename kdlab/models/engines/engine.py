"""What an engine is: a network and example views in, something that answers views out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from kdlab.errors import KdlabError

Precision = Literal["fp32", "bf16", "fp16", "int8"]
# (N, C, H, W) uint8 or float, 0 to 255 -> (N, classes) float32
Asked = Callable[[Tensor], Tensor]


class EngineUnusable(KdlabError):
    """This engine cannot compute this network, or not on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One way to compute a network.

    name, precision: what it is called, and what it counts in.
    prepare: from a network in evaluation mode, example views (N, C, H, W), and the threads that it
        may use; raises EngineUnusable, or whatever the library raises.
    slow_to_prepare: whether it compiles: seconds to minutes.
    """

    name: str
    precision: Precision
    prepare: Callable[[nn.Module, Tensor, int], Asked]
    slow_to_prepare: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} {self.precision}"
