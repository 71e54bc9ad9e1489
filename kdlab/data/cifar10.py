"""CIFAR-10 as torchvision reads it."""

from collections.abc import Callable
from dataclasses import dataclass

from kdlab.config import register
from kdlab.data.from_torchvision import ArraySet, TorchvisionArrays


@register("data/cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(TorchvisionArrays):
    """CIFAR-10 through torchvision; `download: true` fetches it."""

    def expected_bytes(self) -> int:
        return 60000 * 3072

    def torchvision_class(self) -> Callable[..., ArraySet]:
        from torchvision.datasets import CIFAR10

        return CIFAR10
