"""The figure of a reproduction: published, simulated and measured beside each other."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.reproduce.measurement import Measured
from benchmarks.reproduce.table import MeasuredRow, in_digits, typical
from kdlab.report.chart import Points
from kdlab.report.methods import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"published": "#5d6d7e", "simulated": "#2471a3", "measured": "#c0392b"}


def draw(
    title: str, kind: str, rows: Sequence[MeasuredRow], measured: Measured, folder: Path
) -> list[Path]:
    """Write figure.png, and curves.png if there are curves."""
    # Rows that are only inputs have nothing to be compared with.
    compared = [row for row in rows if row.simulated is not None or row.measured]
    quantities = list(dict.fromkeys(row.spec.quantity for row in compared or rows))
    panels = {q: [row for row in rows if row.spec.quantity == q] for q in quantities}
    lined = {q for q, group in panels.items() if kind == "lines" and _numbered(group)}
    # Bars are equally thick in all panels.
    high = [2.4 if q in lined else 0.55 + 0.2 * _bars_of(panels[q]) for q in panels]
    figure = Figure(figsize=(8, sum(high) + 0.7), layout="constrained")
    figure.suptitle(title)
    every = figure.subplots(
        len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": high}
    )[:, 0]
    for axes, (quantity, group) in zip(every, panels.items(), strict=True):
        draw_rows = _lines if quantity in lined else _bars
        draw_rows(axes, group)
        axes.set_title(quantity, loc="left", fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    drawn_rows = [_values(row) for group in panels.values() for row in group]
    shown = [
        Patch(color=colour, label=name)
        for name, colour in _COLOURS.items()
        if any(values[name] is not None for values in drawn_rows)
    ]
    figure.legend(handles=shown, fontsize="small", ncols=3, loc="outside lower right")
    figure.savefig(folder / "figure.png", dpi=110)
    paths = [folder / "figure.png"]
    if measured.curves:
        paths.append(_curves(title, measured.curves, folder / "curves.png"))
    return paths


def _values(row: MeasuredRow) -> dict[str, float | None]:
    return {
        "published": row.spec.published,
        "simulated": row.simulated,
        "measured": typical(row.spec.quantity, row.measured) if row.measured else None,
    }


def _bars_of(rows: Sequence[MeasuredRow]) -> int:
    """Return how many bars will be drawn, plus one for the gap after each row."""
    return sum(1 + sum(v is not None for v in _values(row).values()) for row in rows)


def _bars(axes: "Axes", rows: Sequence[MeasuredRow]) -> None:
    """Draw horizontal bars, for long names; first row on top, measured ones with their range."""
    at, names, places = 0.0, [], []
    for row in rows:
        begin = at
        for name, value in _values(row).items():
            if value is None:
                continue
            axes.barh(at, value, 0.85, color=_COLOURS[name])
            end = value
            if name == "measured" and len(row.measured) > 1:
                low, end = min(row.measured), max(row.measured)
                axes.plot([low, end], [at, at], color="black", linewidth=1)
            axes.annotate(
                in_digits(value), (max(end, 0.0), at), xytext=(4, 0),
                textcoords="offset points", va="center", fontsize="x-small",
            )  # fmt: skip
            at += 1
        names.append(row.spec.row)
        places.append((begin + max(begin, at - 1)) / 2)
        at += 1
    axes.set_yticks(places, names, fontsize="small")
    axes.set_ylim(at - 0.9, -0.9)
    axes.margins(x=0.1)


def _numbered(rows: Sequence[MeasuredRow]) -> bool:
    return all(re.match(r"\d", row.spec.row) for row in rows)


def _lines(axes: "Axes", rows: Sequence[MeasuredRow]) -> None:
    for name, colour in _COLOURS.items():
        points = [
            (float(row.spec.row.split()[0]), value)
            for row in rows
            if (value := _values(row)[name]) is not None
        ]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, "o-", color=colour)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(" ".join(rows[0].spec.row.split()[1:]))


def _curves(title: str, panels: Mapping[str, Mapping[str, Points]], path: Path) -> Path:
    figure = Figure(figsize=(8, 3.2 * len(panels)), layout="constrained")
    figure.suptitle(title)
    every: Any = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (panel, curves) in zip(every, panels.items(), strict=True):
        for (name, points), colour in zip(curves.items(), LINES, strict=False):
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, label=name)
        axes.set_title(panel, loc="left", fontsize="medium")
        axes.set_xlabel("seconds")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    return path
