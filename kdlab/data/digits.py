"""scikit-learn's bundled handwritten digits: 1,797 real images, no download."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from kdlab.config import Range, register
from kdlab.data.images import DataSpec, Decoded, Notify
from kdlab.data.splits import TEST, TRAIN, by_class


@register("data/digits")
@dataclass(frozen=True, kw_only=True)
class Digits(DataSpec):
    """1,797 real handwritten digits, 10 classes, bundled; 8×8 grey, enlarged on demand.

    size: pixels of a side; 8 is the original, more is enlarged bilinearly.
    channels: 1, or 3 for models that want colour (three equal planes).
    """

    size: Annotated[int, Range(ge=8, le=256)] = 8
    channels: Literal[1, 3] = 1
    validation_share: Annotated[float, Range(gt=0, lt=1)] = 0.2

    def identity(self) -> str:
        return f"digits v1 size={self.size} channels={self.channels}"

    def expected_bytes(self) -> int:
        return 1797 * self.channels * self.size**2

    def decode(self, say: Notify) -> Decoded:
        from PIL import Image
        from sklearn.datasets import load_digits

        bunch = load_digits()
        grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
        if self.size != 8:
            side = (self.size, self.size)
            bilinear = Image.Resampling.BILINEAR
            larger = [Image.fromarray(image).resize(side, bilinear) for image in grey]
            grey = np.stack([np.asarray(image) for image in larger])
        labels = bunch.target.astype(np.int64)
        split = np.full(len(labels), TRAIN, np.uint8)
        test, _ = by_class(np.arange(len(labels)), labels, 300, seed=2021)
        split[test] = TEST
        inputs = np.repeat(grey[:, None], self.channels, axis=1)
        return Decoded(inputs, labels, split, tuple(str(i) for i in range(10)))
