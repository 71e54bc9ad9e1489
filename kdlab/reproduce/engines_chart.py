"""The chart of teachers' engines in the docs, drawn from the kept result.

python -m kdlab.reproduce.engines_chart docs/pictures/engines.svg
"""

import html
import sys
from pathlib import Path

from kdlab.reproduce.command import kept
from kdlab.reproduce.headline import INK, OURS, THEIRS

_WIDE, _BAR, _LEFT, _SCALE = 860, 15, 190, 150  # pixels, and of once eager's speed
QUANTITY = "times eager"


def engines_chart() -> str:
    """SVG: for each network a bar for each engine, in the order of the card."""
    networks: dict[str, list[tuple[str, float | None]]] = {}
    for row in kept("engines").rows:
        if row["quantity"] == QUANTITY:
            network, _, engine = str(row["row"]).partition(", ")
            networks.setdefault(network, []).append((engine, row["measured"]))
    parts, y = list[str](), 8
    for network, engines in networks.items():
        y += 16
        parts.append(
            f'<text x="0" y="{y}" font-weight="600" fill="{INK}">{html.escape(network)}</text>'
        )
        y += 8
        for engine, times in engines:
            parts += _bar(engine, times, y)
            y += _BAR + 4
        y += 10
    note = "Labels a second on one core, times those of PyTorch as it is"
    foot = f'<text x="0" y="{y + 12}" font-size="12" fill="{INK}">{note}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {y + 22}" '
        f'width="{_WIDE}" height="{y + 22}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img"><title>{note}</title>{"".join(parts)}{foot}</svg>\n'
    )


def _bar(engine: str, times: float | None, y: int) -> list[str]:
    middle = y + _BAR - 3
    name = (
        f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end" fill="{INK}">'
        f"{html.escape(engine)}</text>"
    )
    if times is None:
        return [
            name,
            f'<text x="{_LEFT}" y="{middle}" fill="{INK}">refused, or not tried</text>',
        ]
    wide = _SCALE * times
    fill = THEIRS if engine == "eager fp32" else OURS
    return [
        name,
        f'<rect x="{_LEFT}" y="{y}" width="{wide:.1f}" height="{_BAR}" rx="3" fill="{fill}"/>',
        f'<text x="{_LEFT + wide + 6:.1f}" y="{middle}" fill="{INK}">{times:.2f}</text>',
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(engines_chart(), encoding="utf-8")
