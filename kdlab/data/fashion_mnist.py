"""Fashion-MNIST as torchvision reads it."""

from dataclasses import dataclass

from kdlab.config import register
from kdlab.data.from_torchvision import TorchvisionArrays


@register("data/fashion_mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(TorchvisionArrays):
    """Fashion-MNIST through torchvision; `download: true` fetches it."""

    torchvision_name = "FashionMNIST"
    decoded_bytes = 70000 * 784
