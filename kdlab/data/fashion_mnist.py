"""Fashion-MNIST as torchvision reads it."""

from collections.abc import Callable
from dataclasses import dataclass

from kdlab.config import register
from kdlab.data.from_torchvision import ArraySet, TorchvisionArrays


@register("data/fashion_mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(TorchvisionArrays):
    """Fashion-MNIST through torchvision; `download: true` fetches it."""

    def expected_bytes(self) -> int:
        return 70000 * 784

    def torchvision_class(self) -> Callable[..., ArraySet]:
        from torchvision.datasets import FashionMNIST

        return FashionMNIST
