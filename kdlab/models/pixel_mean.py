"""The mean training image, subtracted from every image (EC-DNN, section 5.1)."""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kdlab.models.model import Normalised

_ENOUGH = 50_000  # rows; more change the mean by too little to matter
_ROWS = 4096  # summed at a time


class PixelMean(nn.Module):
    """First layer of a network: zero until `fit_pixel_mean`, then part of its weights."""

    mean_image: Tensor

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.register_buffer("mean_image", torch.zeros(channels, side, side))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, side, side) -> the same."""
        return x - self.mean_image


def mean_layers(channels: int, side: int | None) -> list[nn.Module]:
    """Return the layer in a list, empty where no side is given."""
    return [] if side is None else [PixelMean(channels, side)]


class ImageRows(Protocol):
    """(N, C, H, W) uint8, by rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: NDArray[Any], /) -> NDArray[Any]: ...


@torch.no_grad()
def fit_pixel_mean(model: Normalised, images: ImageRows, rows: NDArray[Any]) -> None:
    """Set a model's pixel mean to that of these rows of images, before augmentation.

    A mean from the weights file stays; most networks have none. Of more than 50,000 rows only
    every second, third or so counts.
    """
    layers = [m for m in model.modules() if isinstance(m, PixelMean)]
    layers = [layer for layer in layers if not bool(layer.mean_image.any())]
    if not layers:
        return
    rows = rows[:: max(1, len(rows) // _ENOUGH)]
    total = np.zeros(images.shape[1:], np.float64)
    for start in range(0, len(rows), _ROWS):
        total += images[rows[start : start + _ROWS]].sum(0, dtype=np.float64)
    mean = torch.from_numpy(total / len(rows)).to(model.mean)
    for layer in layers:
        layer.mean_image.copy_(((mean - model.mean) / model.std)[0])
