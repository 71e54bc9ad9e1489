"""Images with words below them, for notebooks and pages."""

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kdlab.report import page

_SIDE = 96  # pixels that an image is shown with


@dataclass(frozen=True, slots=True)
class Pictures:
    """Images with a line or two below each; text in a terminal."""

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


def figures(inside: Iterable[str]) -> str:
    """A figure for each HTML, beside each other."""
    each = "".join(f"<figure>{one}</figure>" for one in inside)
    return f'<div class="kd-pictures">{each}</div>'


def picture(image: NDArray[np.uint8], side: int, said: str) -> str:
    """(C, H, W) as an <img> of this width, for those who cannot see it as `said`.

    Those that are much larger travel as large as a screen of twice as many pixels shows them.
    """
    shown = Image.fromarray(np.moveaxis(image, 0, -1).squeeze())
    shown.thumbnail((2 * side, 2 * side), Image.Resampling.LANCZOS)
    small = shown.width < side
    written, kind = io.BytesIO(), "PNG" if small else "JPEG"
    shown.save(written, kind, quality=82)
    source = (
        f"data:image/{kind.lower()};base64,{base64.b64encode(written.getvalue()).decode()}"
    )
    as_it_is = ' style="image-rendering:pixelated"' if small else ""
    return f'<img alt="{escape(said)}" src="{source}" width="{side}"{as_it_is}/>'
