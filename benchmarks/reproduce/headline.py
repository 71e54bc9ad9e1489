"""The picture above the fold of the README, drawn from kept results.

python -m benchmarks.reproduce.headline docs/pictures/headline.svg
"""

import sys
from pathlib import Path

from benchmarks.reproduce.bars import picture
from benchmarks.reproduce.command import kept
from kdlab.report.verdict_picture import three_bars


def headline() -> str:
    """SVG: a student by its labels alone, with its teacher, and the teacher itself."""
    known = {
        row["row"]: row["mean"]
        for row in kept("demo")["rows"]
        if row["quantity"] == "top-1, %"
    }
    alone, taught, teacher = (
        float(known[row]) for row in ("alone", "with its teacher", "teacher")
    )
    drawn, tall = three_bars(
        "Right answers on 641 test photos, 20 labels a class",
        alone,
        taught,
        teacher,
        "Mean of three seeds; the teacher answers from other processes, one of which is killed.",
    )
    return picture("", drawn, tall, "demo")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(headline(), encoding="utf-8")
