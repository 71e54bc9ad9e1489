"""The picture above the fold of the README, drawn from kept results.

python -m kdlab.reproduce.headline docs/pictures/headline.svg
"""

import html
import sys
from pathlib import Path

from kdlab.reproduce.command import kept

_WIDE, _BAR, _GAP, _TOP = 860, 22, 9, 46
OURS, THEIRS, INK = "#2f6fb3", "#9aa6b5", "#5f6b7a"
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {tall}" width="{_WIDE}" '
        f'height="{tall}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        f"<title>{note}</title>{speed}{top1}"
        f'<text x="0" y="{tall - 8}" font-size="12" fill="{INK}">{note}</text></svg>\n'
    )


def _bars(
    title: str,
    card: str,
    quantity: str,
    which: str,
    shown: tuple[tuple[str, str, bool], ...],
    left: int,
) -> str:
    rows = kept(card).rows
    known = {row["row"]: row[which] for row in rows if row["quantity"] == quantity}
    values = [float(known[row]) for row, _, _ in shown]
    parts = [
        f'<text x="{left}" y="20" font-size="15" font-weight="600" fill="{INK}">{title}</text>'
    ]
    for place, ((_, words, ours), value) in enumerate(zip(shown, values, strict=True)):
        y, wide = _TOP + place * (_BAR + _GAP), 190 * value / max(values)
        middle = y + _BAR / 2 + 4
        parts += [
            f'<text x="{left + 150}" y="{middle}" text-anchor="end" fill="{INK}">'
            f"{html.escape(words)}</text>",
            f'<rect x="{left + 158}" y="{y}" width="{wide:.1f}" height="{_BAR}" rx="3" '
            f'fill="{OURS if ours else THEIRS}"/>',
            f'<text x="{left + 164 + wide:.1f}" y="{middle}" fill="{INK}">'
            f"{value:,.{0 if value > 1000 else 1}f}</text>",
        ]
    return "".join(parts)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(headline(), encoding="utf-8")
