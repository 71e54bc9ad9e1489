"""CIFAR-10 as torchvision reads it."""

from dataclasses import dataclass
from typing import Any

from kdlab.config import register
from kdlab.data.from_torchvision import TorchvisionData, decoded
from kdlab.data.images import Decoded, Say


@register("data/cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(TorchvisionData):
    """CIFAR-10 through torchvision; `download: true` fetches it."""

    def expected_bytes(self) -> int:
        return 60000 * 3072

    def torchvision_class(self) -> Any:
        from torchvision.datasets import CIFAR10

        return CIFAR10

    def decode(self, say: Say) -> Decoded:
        return decoded(*self.open_all())
