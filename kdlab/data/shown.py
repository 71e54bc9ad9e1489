"""How a set shows an image without augmentation, so that others can show theirs the same way."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.config.spec import Spec
from kdlab.data.encoded.decode import Interpolation, head, square, view
from kdlab.data.encoded.pictures import middle


@dataclass(frozen=True, kw_only=True)
class ImageInput(Spec):
    """What a model is given of an image: a square in its middle, brought to a size.

    size: pixels of a side.
    crop_pct: share of the shorter side that the square has.
    resize: by torch, as sets are shown that stay encoded; or by Pillow, as those that are
        decoded once.
    """

    size: int
    channels: Literal[1, 3] = 3
    crop_pct: float = 1.0
    interpolation: Interpolation = "bilinear"
    resize: Literal["torch", "pillow"] = "torch"

    def pixels(self, raw: bytes) -> NDArray[np.uint8]:
        """(C, size, size) of an encoded image.

        Raises:
            DataError: it is damaged, or none.
        """
        if self.resize == "pillow":
            return square(raw, self.size, self.channels)
        known = head(raw)
        shown = view(
            raw,
            known,
            middle(known, self.crop_pct),
            (self.size, self.size),
            self.channels,
            self.interpolation,
        )
        return np.ascontiguousarray(shown.transpose(2, 0, 1))
