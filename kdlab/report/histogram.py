"""How sure a classifier is where it is right and where it is wrong, as bars in an SVG."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kdlab.report.chart import WIDTH, svg_head, svg_text, ticks

_TALL, _LEFT, _TOP, _BOTTOM = 130, 62, 20, 32
_BINS = 20
_RIGHT, _WRONG = "#3f9d64", "#d1603d"


def confidence_histograms(
    of: Mapping[str, tuple[NDArray[np.floating], NDArray[np.bool_]]],
) -> str:
    """Below each other, one for each name.

    Args:
        of: by name, largest probability of each image (0 to 1) and whether it is right.
    """
    parts = [svg_head(_TALL * len(of) + 4)]
    for place, (name, (confidence, right)) in enumerate(of.items()):
        parts += _bars(name, confidence, right, place * _TALL)
    return "".join([*parts, "</svg>"])


def _bars(
    name: str, confidence: NDArray[np.floating], right: NDArray[np.bool_], top: float
) -> list[str]:
    edges = np.linspace(0, 1, _BINS + 1)
    good, bad = (np.histogram(confidence[own], edges)[0] for own in (right, ~right))
    most = max(1, int((good + bad).max()))
    wide, tall = (WIDTH - _LEFT - 12) / _BINS, _TALL - _TOP - _BOTTOM
    low = top + _TOP + tall
    parts = [
        svg_text(_LEFT, f"{top + 13}", f"{name}, images", 'font-weight="bold"'),
        svg_text(
            WIDTH - 12, f"{top + 13}", "wrong", f'text-anchor="end" style="fill:{_WRONG}"'
        ),
        svg_text(
            WIDTH - 56, f"{top + 13}", "right", f'text-anchor="end" style="fill:{_RIGHT}"'
        ),
    ]
    for value in ticks(0, most, 3):
        y = low - tall * value / most
        parts += [
            f'<line x1="{_LEFT}" x2="{WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#888" '
            'stroke-opacity="0.3"/>',
            svg_text(_LEFT - 6, f"{y + 4:.1f}", f"{value:,.6g}", 'text-anchor="end"'),
        ]
    for k in range(_BINS):
        y, x = low, _LEFT + k * wide
        for count, colour, word in ((good[k], _RIGHT, "right"), (bad[k], _WRONG, "wrong")):
            high = tall * count / most
            y -= high
            said = f"{count} {word} at {100 * edges[k]:.0f} to {100 * edges[k + 1]:.0f} %"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{wide - 2:.1f}" height="{high:.1f}" '
                f'fill="{colour}"><title>{said}</title></rect>'
            )
    for share in range(0, 101, 20):
        x = _LEFT + _BINS * wide * share / 100
        anchor = "end" if share == 100 else "middle"
        how = f'text-anchor="{anchor}"'
        parts.append(svg_text(round(x, 1), f"{low + 14:.1f}", str(share), how))
    middle = _LEFT + _BINS * wide / 2
    parts.append(
        svg_text(middle, f"{low + 27:.1f}", "confidence, %", 'text-anchor="middle"')
    )
    return parts
