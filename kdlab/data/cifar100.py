"""CIFAR-100 as torchvision reads it."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.data.from_torchvision import TorchvisionArrays


@register("data/cifar100")
@dataclass(frozen=True, kw_only=True)
class Cifar100(TorchvisionArrays):
    """CIFAR-100 through torchvision; `download: true` fetches it."""

    torchvision_name = "CIFAR100"
    decoded_bytes = 60000 * 3072
