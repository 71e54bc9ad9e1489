"""Comparison of parallel training methods: EC-DNN's Fig. 4 and Table 1 for one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kdlab.papers.ec_dnn.metrics import Point, speed, worse_share
from kdlab.report.page import markdown_table
from kdlab.report.round_errors import CostTotals, RoundErrors
from kdlab.report.table import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of curves.
LINES = ("#2471a3", "#c0392b", "#229954", "#8e44ad", "#b9770e", "#5d6d7e")


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """One training of one method, read from its direction.json."""

    looks: Sequence[RoundErrors]  # evaluations at communications
    account: CostTotals  # costs

    def curve(self, key: str, along: str = "parallel_s") -> list[Point]:
        """Return errors `global_` or `chosen` (_L) over overall time or `iterations`."""
        return [Point(getattr(look, along), getattr(look, key)) for look in self.looks]

    @property
    def last(self) -> RoundErrors:
        return self.looks[-1]

    @property
    def end(self) -> Point:
        """Overall time and final error of the global model."""
        return Point(self.last.parallel_s, self.last.global_)

    def differences(self) -> list[float]:
        """Return Diff_LG (Eq. 7) at the end of each evaluated round."""
        return [look.diff_lg for look in self.looks]


def rows(
    methods: Mapping[str, Sequence[ErrorCurve]], baseline: str = "ma_dnn"
) -> list[dict[str, str]]:
    """Return a row for each method; speed is relative to `baseline`'s global model, if present."""
    table = []
    for name, courses in methods.items():
        row = {
            "method": name,
            "error _L": spread([c.last.chosen for c in courses], 2),
            "error _G": spread([c.last.global_ for c in courses], 2),
            "Diff_LG": f"{fmean(fmean(c.differences()) for c in courses):+.2f}",
            "worse": f"{fmean(worse_share(c.differences()) for c in courses):.0%}",
            "iterations": str(courses[0].last.iterations),
            "time s": f"{fmean(c.account.parallel_s for c in courses):.1f}",
        }
        for part in ("communication", "relabel", "compress"):
            seconds = fmean(getattr(c.account, f"{part}_s") for c in courses)
            row[f"{part} s"] = f"{seconds:.1f}"
        row["MB fetched"] = f"{fmean(c.account.fetched_bytes for c in courses) / 1e6:.1f}"
        if baseline in methods:
            pairs = zip(courses, methods[baseline], strict=True)
            speeds = [speed(c.curve("global_"), b.curve("global_")) for c, b in pairs]
            defined = [s for s in speeds if s is not None]
            row["speed _G"] = f"{fmean(defined):.2f}" if defined == speeds else "undefined"
        table.append(row)
    return table


def markdown(table: Sequence[Mapping[str, str]]) -> str:
    """Return the table as Markdown, with an explanation of its columns."""
    names = list(table[0])
    lines = [
        markdown_table(names, [[row[name] for name in names] for row in table]),
        "",
        "Test errors in percent at the end: `_L` of the local model with the smallest training",
        "loss (before an average of weights, behind a compression), `_G` of the global model.",
        "`Diff_LG`: mean of the local errors minus that of the global model, at rounds' ends;",
        "`worse`: share of these where it is below 0. Seconds are those of machines side by side",
        "(the slowest worker of each round); `speed`: time of ma_dnn's global model over the",
        "method's to the same error, 0 if never; undefined where in one of its trainings ma_dnn",
        "is within a point of its best before 70 % of its time.",
    ]
    return "\n".join(lines) + "\n"


def picture(methods: Mapping[str, Sequence[ErrorCurve]], path: Path) -> None:
    """Plot errors of all methods, means over seeds, over overall time and over iterations."""
    from matplotlib.figure import Figure  # 1 s

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, (name, courses) in enumerate(methods.items()):
        colour = LINES[number % len(LINES)]
        _draw(left, courses, "parallel_s", name, colour)
        _draw(right, courses, "iterations", name, colour)
    left.set_xlabel("overall time on machines side by side, s")
    right.set_xlabel("local iterations")
    left.set_ylabel("test error, %  (solid _G, dashed _L)")
    right.legend()
    figure.savefig(path, dpi=120)


def _draw(
    axes: "Axes", courses: Sequence[ErrorCurve], along: str, name: str, colour: str
) -> None:
    """Draw the mean over seeds at rounds that all seeds evaluated."""

    def mean(key: str) -> NDArray[np.float64]:
        """Return (2, rounds): x values and errors."""
        counts = [
            [p.seconds for p in course.curve(key, "iterations")] for course in courses
        ]
        curves = [
            dict(zip(count, course.curve(key, along), strict=True))
            for count, course in zip(counts, courses, strict=True)
        ]
        common = sorted(set.intersection(*map(set, counts)))
        points = [[(curve[n].seconds, curve[n].error) for n in common] for curve in curves]
        return np.asarray(np.mean(points, axis=0)).reshape(-1, 2).T

    axes.plot(*mean("global_"), color=colour, label=name)
    axes.plot(*mean("chosen"), color=colour, linestyle="--", linewidth=1)
