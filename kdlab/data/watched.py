"""A few test images that all networks of a run are asked about while it trains."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kdlab.data.images import ImageData
from kdlab.data.splits import by_class

_COUNT = 8
SIDE = 96  # pixels of one in the picture of all


def watched_rows(data: ImageData) -> NDArray[np.int64]:
    """The same of a set each time, of its classes in turn; none where it has no test images."""
    return by_class(data.test, data.labels, _COUNT, 0)[0]


def write_strip(data: ImageData, rows: NDArray[np.int64], path: Path) -> None:
    """Those images beside each other, (SIDE, SIDE) each, as a PNG."""
    strip = Image.new("RGB", (SIDE * len(rows), SIDE))
    for place, pixels in enumerate(data.inputs[rows]):
        image = Image.fromarray(np.moveaxis(pixels, 0, -1).squeeze())
        small = image.height < SIDE
        how = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
        strip.paste(image.convert("RGB").resize((SIDE, SIDE), how), (SIDE * place, 0))
    strip.save(path, "PNG")
