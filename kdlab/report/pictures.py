"""Images with words below them, for notebooks and pages."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_SIDE = 96  # pixels at least that an image is shown with


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images with a line or two below each; text in a terminal."""

    images: NDArray[np.uint8]  # (N, C, H, W)
    lines: Sequence[Sequence[str]]

    def __repr__(self) -> str:
        return "\n".join(" · ".join(lines) for lines in self.lines)

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<div style="width:{_SIDE + 24}px;font-size:11px">{_png(image)}<br>'
            f"{'<br>'.join(html.escape(line) for line in lines)}</div>"
            for image, lines in zip(self.images, self.lines, strict=True)
        )
        return f'<div style="display:flex;flex-wrap:wrap;gap:8px">{cells}</div>'


def _png(image: NDArray[np.uint8]) -> str:
    """(C, H, W) as an <img>, small ones enlarged without smoothing."""
    picture = Image.fromarray(np.moveaxis(image, 0, -1).squeeze())
    times = max(1, round(_SIDE / picture.width))
    if times > 1:
        size = (picture.width * times, picture.height * times)
        picture = picture.resize(size, Image.Resampling.NEAREST)
    written = io.BytesIO()
    picture.save(written, "PNG")
    source = base64.b64encode(written.getvalue()).decode()
    return f'<img src="data:image/png;base64,{source}" width="{_SIDE}"/>'
