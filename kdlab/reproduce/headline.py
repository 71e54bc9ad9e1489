"""The picture above the fold of the README, drawn from kept results.

python -m kdlab.reproduce.headline docs/pictures/headline.svg
"""

import sys
from pathlib import Path

from kdlab.report.bars import bar, title
from kdlab.reproduce.bars import picture
from kdlab.reproduce.command import kept

_BAR, _GAP, _TOP, _LONGEST = 22, 9, 46, 190  # pixels
# Row of a card, what stands beside its bar, and whether it is what kdlab is for.
_SPEED = (
    ("kdlab, served", "kdlab, served teachers", True),
    ("timm, 2 threads", "timm's loop", False),
    ("torchdistill, 2 threads", "torchdistill", False),
    ("loop by hand, 2 threads", "a loop by hand", False),
)
_ACCURACY = (
    ("EDL-Dist, teachers killed", "taught, teachers killed", True),
    ("Online", "taught in one process", False),
    ("N-training", "the same network alone", False),
)


def headline() -> str:
    """SVG: speed beside what one would use instead, accuracy beside no teacher."""
    tall = _TOP + 4 * (_BAR + _GAP) + 28
    speed = _bars("Samples a second", "peers", "samples/s", "measured", _SPEED, 0)
    top1 = _bars(
        "Accuracy on test, %", "edl_dist/table4", "top-1, %", "mean", _ACCURACY, 440
    )
    note = "On two processor cores; on either side the same student, teacher and images."
    return picture(note, speed + top1, tall, "peers", "edl_dist/table4")


def _bars(
    words: str,
    card: str,
    quantity: str,
    which: str,
    shown: tuple[tuple[str, str, bool], ...],
    left: int,
) -> str:
    rows = kept(card).rows
    known = {row["row"]: row[which] for row in rows if row["quantity"] == quantity}
    values = [float(known[row]) for row, _, _ in shown]
    drawn = title(words, left, 20)
    for place, ((_, name, ours), value) in enumerate(zip(shown, values, strict=True)):
        y, wide = _TOP + place * (_BAR + _GAP), _LONGEST * value / max(values)
        number = f"{value:,.{0 if value > 1000 else 1}f}"
        drawn += bar(name, number, left + 158, y, wide, tall=_BAR, ours=ours)
    return drawn


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(headline(), encoding="utf-8")
