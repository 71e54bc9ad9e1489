"""Fashion-MNIST as torchvision reads it."""

from dataclasses import dataclass
from typing import Any

from kdlab.config import register
from kdlab.data.from_torchvision import TorchvisionData, decoded
from kdlab.data.images import Decoded, Say


@register("data/fashion_mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(TorchvisionData):
    """Fashion-MNIST through torchvision; `download: true` fetches it."""

    def expected_bytes(self) -> int:
        return 70000 * 784

    def torchvision_class(self) -> Any:
        from torchvision.datasets import FashionMNIST

        return FashionMNIST

    def decode(self, say: Say) -> Decoded:
        return decoded(*self.open_all())
