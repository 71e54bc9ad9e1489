"""The verdict of a run as a picture: three bars and a sentence."""

import html
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from kdlab.report.bars import INK, bar, svg_document, title

_BAR, _GAP, _TOP, _LEFT, _LONGEST = 26, 10, 40, 190, 560  # pixels
_LETTERS = 125  # characters of a line of the note
PICTURE = "verdict.svg"  # in a run folder


def three_bars(
    words: str, untaught: float, taught: float, teacher: float, note: str
) -> tuple[str, int]:
    """Return the SVG parts of three accuracies in percent, and their height in pixels.

    Args:
        words: title.
        untaught: accuracy of the student without a teacher.
        taught: accuracy of the student with its teacher.
        teacher: accuracy of the teacher.
        note: text below the bars.
    """
    drawn, y = title(words, 0, 18), _TOP
    for name, value, ours in (
        ("alone, by its labels", untaught, False),
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
    """Write the picture of a run's verdict to its folder, if it has one."""
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
    (folder / PICTURE).write_text(svg_document("", drawn, tall), encoding="utf-8")
