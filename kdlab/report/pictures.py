"""Images with captions, for notebooks and pages."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kdlab.report import page

_SIDE = 96  # width of a shown image in pixels


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images with caption lines; prints as the captions."""

    images: NDArray[np.uint8]  # (N, C, H, W)
    lines: Sequence[Sequence[str]]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return "\n".join(" · ".join(lines) for lines in self.lines)

    def html(self) -> str:
        return figures(
            f"{picture(image, _SIDE, ', '.join(lines))}<br>{'<br>'.join(map(escape, lines))}"
            for image, lines in zip(self.images, self.lines, strict=True)
        )

    def _repr_html_(self) -> str:
        return page.shown(page.Card("", self.html()))


def figures(contents: Iterable[str]) -> str:
    """Return a row of figures from HTML contents."""
    each = "".join(f"<figure>{content}</figure>" for content in contents)
    return f'<div class="kd-pictures">{each}</div>'


def picture(image: NDArray[np.uint8], side: int, alt: str) -> str:
    """Embed an image (C, H, W) as <img> of width `side` pixels.

    Larger images are reduced to twice that size, for screens of high resolution.
    """
    thumbnail = Image.fromarray(np.moveaxis(image, 0, -1).squeeze())
    thumbnail.thumbnail((2 * side, 2 * side), Image.Resampling.LANCZOS)
    is_small = thumbnail.width < side
    buffer, kind = io.BytesIO(), "PNG" if is_small else "JPEG"
    thumbnail.save(buffer, kind, quality=82)
    source = (
        f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    )
    style = ' style="image-rendering:pixelated"' if is_small else ""
    return f'<img alt="{escape(alt)}" src="{source}" width="{side}"{style}/>'
