"""The chart of teachers' engines in the docs, drawn from the kept result.

python -m benchmarks.reproduce.engines_chart docs/pictures/engines.svg
"""

import sys
from pathlib import Path

from benchmarks.reproduce.bars import picture
from benchmarks.reproduce.command import kept
from kdlab.report.bars import bar, title

_LEFT, _SCALE, _STEP = 190, 150, 19  # pixels; of once eager's speed; from bar to bar
QUANTITY = "times eager"


def engines_chart() -> str:
    """SVG: for each network a bar for each engine, in the order of the card."""
    networks: dict[str, list[tuple[str, float | None]]] = {}
    for row in kept("engines")["rows"]:
        if row["quantity"] == QUANTITY:
            network, _, engine = str(row["row"]).partition(", ")
            networks.setdefault(network, []).append((engine, row["measured"]))
    parts, y = "", 8
    for network, engines in networks.items():
        parts += title(network, 0, y + 16)
        y += 24
        for engine, times in engines:
            number = "refused, or not tried" if times is None else f"{times:.2f}"
            wide = _SCALE * (times or 0.0)
            parts += bar(engine, number, _LEFT, y, wide, ours=engine != "eager fp32")
            y += _STEP
        y += 10
    note = "Labels a second on one core, times those of PyTorch as it is"
    return picture(note, parts, y + 24, "engines")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(engines_chart(), encoding="utf-8")
