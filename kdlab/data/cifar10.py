"""CIFAR-10 as torchvision reads it."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.data.from_torchvision import TorchvisionArrays


@register("data/cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(TorchvisionArrays):
    """CIFAR-10 through torchvision; `download: true` fetches it."""

    torchvision_name = "CIFAR10"
    decoded_bytes = 60000 * 3072
