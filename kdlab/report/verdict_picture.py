"""What a teacher was worth to its student: three bars and a sentence."""

import html
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from kdlab.report.bars import INK, bar, title, whole

_BAR, _GAP, _TOP, _LEFT, _LONGEST = 26, 10, 40, 190, 560  # pixels
_LETTERS = 125  # of a line below
PICTURE = "verdict.svg"  # in the folder of a run


def three_bars(
    words: str, alone: float, taught: float, teacher: float, note: str
) -> tuple[str, int]:
    """What stands in an SVG, and its height; percent.

    Args:
        words: above it.
        alone: top-1 of the student without a teacher.
        taught: with its teacher.
        teacher: of the teacher itself.
        note: below it.
    """
    drawn, y = title(words, 0, 18), _TOP
    for name, value, ours in (
        ("alone, by its labels", alone, False),
        ("with its teacher", taught, True),
        ("the teacher itself", teacher, False),
    ):
        long = _LONGEST * value / 100
        drawn += bar(name, f"{value:.1f} %", _LEFT, y, long, tall=_BAR, ours=ours)
        y += _BAR + _GAP
    for line in wrap(note, _LETTERS):
        y += 18
        drawn += (
            f'<text x="0" y="{y}" font-size="13" fill="{INK}">{html.escape(line)}</text>'
        )
    return drawn, y + 30


def write_picture(folder: Path, result: Mapping[str, Any]) -> None:
    """The picture of a run with a verdict, into its folder; nothing without one."""
    verdict, teacher = result.get("verdict"), result.get("teacher_top1")
    if not verdict or teacher is None:
        return
    drawn, tall = three_bars(
        "Right answers on the test images",
        verdict["before"],
        verdict["after"],
        teacher,
        verdict["sentence"],
    )
    (folder / PICTURE).write_text(whole("", drawn, tall), encoding="utf-8")
