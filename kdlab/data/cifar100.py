"""CIFAR-100 as torchvision reads it."""

from dataclasses import dataclass
from typing import Any

from kdlab.config import register
from kdlab.data.from_torchvision import TorchvisionData, decoded
from kdlab.data.images import Decoded, Say


@register("data/cifar100")
@dataclass(frozen=True, kw_only=True)
class Cifar100(TorchvisionData):
    """CIFAR-100 through torchvision; `download: true` fetches it."""

    def expected_bytes(self) -> int:
        return 60000 * 3072

    def torchvision_class(self) -> Any:
        from torchvision.datasets import CIFAR100

        return CIFAR100

    def decode(self, say: Say) -> Decoded:
        return decoded(*self.open_all())
