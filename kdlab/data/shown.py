"""Views without augmentation: in tests, in predictions and for exported students."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.config.spec import Spec
from kdlab.data.encoded.decode import (
    Head,
    Interpolation,
    Pixels,
    decoded,
    from_pillow,
    head,
    in_channels,
    resized,
    scaled,
)
from kdlab.errors import DataError

CropMode = Literal["center", "squash", "border"]
_LONGEST = 16  # times the shorter side: a longer image is cropped to its middle
_CHANNELS = (1, 2, 3, 4)  # grey or colours, each with or without transparency


@dataclass(frozen=True, kw_only=True)
class InputSpec(Spec):
    """The transform from an image to a model's input, equal to timm's in every pixel.

    size: pixels of a side.
    crop_pct: share of the resized image that is shown.
    crop_mode: `center` resizes the shorter side and shows the middle, `squash` both sides alike,
        `border` the longer side, with a border of the colour `fill`.
    """

    size: int
    channels: Literal[1, 3] = 3
    crop_pct: float = 1.0
    interpolation: Interpolation = "bilinear"
    crop_mode: CropMode = "center"
    fill: tuple[int, ...] = (128, 128, 128)

    def pixels(self, image: object, known: Head | None = None) -> Pixels:
        """(C, size, size) of an encoded image, of one of Pillow's, or of an array.

        Raises:
            DataError: it is damaged, or no image.
        """
        if isinstance(image, bytes):
            return decoded(image, known or head(image), self._planes)
        if hasattr(image, "getexif"):  # of Pillow
            return self._planes(from_pillow(image))  # type: ignore[arg-type]
        return self._planes(_of_array(np.asarray(image)))

    def _planes(self, pixels: Pixels) -> Pixels:
        """(C, size, size) of (H, W, 3)."""
        height, width = pixels.shape[:2]
        longest = _LONGEST * min(height, width)
        if self.crop_mode == "center" and max(height, width) > longest:
            pixels = _middle(pixels, min(height, longest), min(width, longest))
        large = resized(
            in_channels(pixels, self.channels),
            self._size(*pixels.shape[:2]),
            self.interpolation,
        )
        fill = in_channels(np.array([[self.fill]], np.uint8), self.channels)[0, 0]
        shown = _middle(large, self.size, self.size, fill)
        return np.ascontiguousarray(shown.transpose(2, 0, 1))

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width to which an image is resized before the centre crop."""
        side = math.floor(self.size / self.crop_pct)
        if self.crop_mode == "squash":
            return side, side
        if self.crop_mode == "border":
            ratio = max(height / side, width / side)
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        short = min(height, width)
        return int(side * height / short), int(side * width / short)


def _middle(pixels: Pixels, height: int, width: int, fill: Any = 0) -> Pixels:
    """The centre (height, width) of an image, padded with the colour `fill`."""
    shown = np.empty((height, width, pixels.shape[2]), np.uint8)
    shown[:] = fill
    cut, put = [], []
    for have, wanted in zip(pixels.shape, (height, width), strict=False):
        begin, into = max(0, round((have - wanted) / 2)), max(0, (wanted - have) // 2)
        count = min(have, wanted)
        cut.append(slice(begin, begin + count))
        put.append(slice(into, into + count))
    shown[tuple(put)] = pixels[tuple(cut)]
    return shown


def _of_array(values: NDArray[Any]) -> Pixels:
    """(H, W, 3) of (H, W), (H, W, C), or (C, H, W) where the shape is unambiguous.

    Raises:
        DataError: another shape, or numbers that are no pixels.
    """
    pixels = values
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    elif pixels.ndim == 3 and pixels.shape[2] not in _CHANNELS:
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.ndim != 3 or pixels.shape[2] not in _CHANNELS or not pixels.size:
        raise DataError(
            f"is an array of shape {values.shape}; an image has (height, width) or (height, width, "
            "channels), with 1 to 4 channels"
        )
    if pixels.dtype.kind != "f" and pixels.dtype not in (np.uint8, np.uint16):
        raise DataError(
            f"is an array of {pixels.dtype}; an image has whole numbers from 0 to 255 (uint8) or "
            "to 65535 (uint16), or floating-point numbers from 0 to 1"
        )
    colours = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., [0, 0, 0]]
    return colours if pixels.dtype == np.uint8 else scaled(colours)
