"""A few test images whose predictions are recorded while a run trains."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kdlab.data.images import ImageData
from kdlab.data.splits import by_class

_COUNT = 8
SIDE = 96  # pixels of one in the picture of all


def watched_rows(data: ImageData) -> NDArray[np.int64]:
    """Rows of these images: always the same of a set, class by class; empty without test images."""
    return by_class(data.test, data.labels, _COUNT, 0)[0]


def write_strip(data: ImageData, rows: NDArray[np.int64], path: Path) -> None:
    """Write images side by side, (SIDE, SIDE) pixels each, as a PNG."""
    strip = Image.new("RGB", (SIDE * len(rows), SIDE))
    for place, pixels in enumerate(data.inputs[rows]):
        image = Image.fromarray(np.moveaxis(pixels, 0, -1).squeeze())
        small = image.height < SIDE
        mode = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
        strip.paste(image.convert("RGB").resize((SIDE, SIDE), mode), (SIDE * place, 0))
    strip.save(path, "PNG")
