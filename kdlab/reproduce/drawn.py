"""The figure of a reproduction: published, simulated and measured beside each other."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from matplotlib.figure import Figure

from kdlab.reproduce.measurement import Measured, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"published": "#5d6d7e", "simulated": "#2471a3", "measured": "#c0392b"}
_LINES = ("#2471a3", "#c0392b", "#229954", "#8e44ad", "#b9770e", "#5d6d7e")


class RowWords(Protocol):
    @property
    def row(self) -> str: ...
    @property
    def quantity(self) -> str: ...
    @property
    def published(self) -> float | None: ...


class FoundRow(Protocol):
    @property
    def spec(self) -> RowWords: ...
    @property
    def simulated(self) -> float | None: ...
    @property
    def measured(self) -> tuple[float, ...]: ...


def draw(
    title: str, kind: str, rows: Sequence[FoundRow], measured: Measured, folder: Path
) -> list[Path]:
    """Writes figure.png, and curves.png where there are any."""
    # What is only an input has nothing to be compared with.
    told = [row for row in rows if row.simulated is not None or row.measured]
    quantities = list(dict.fromkeys(row.spec.quantity for row in told or rows))
    figure = Figure(figsize=(8, 2.6 * len(quantities) + 0.4), layout="constrained")
    figure.suptitle(title)
    every = figure.subplots(len(quantities), 1, squeeze=False)[:, 0]
    for axes, quantity in zip(every, quantities, strict=True):
        own = [row for row in rows if row.spec.quantity == quantity]
        drawn = _lines if kind == "lines" and _numbered(own) else _bars
        drawn(axes, own)
        axes.set_title(quantity, loc="left", fontsize="medium")
        axes.legend(fontsize="small")
    figure.savefig(folder / "figure.png", dpi=110)
    paths = [folder / "figure.png"]
    if measured.curves:
        paths.append(_curves(title, measured.curves, folder / "curves.png"))
    return paths


def _values(row: FoundRow) -> dict[str, float | None]:
    return {
        "published": row.spec.published,
        "simulated": row.simulated,
        "measured": median(row.measured) if row.measured else None,
    }


def _bars(axes: "Axes", rows: Sequence[FoundRow]) -> None:
    series = {
        name: [
            (k, h) for k, row in enumerate(rows) if (h := _values(row)[name]) is not None
        ]
        for name in _COLOURS
    }
    present = [name for name, known in series.items() if known]
    wide = 0.8 / max(1, len(present))
    for place, name in enumerate(present):
        shift = (place - (len(present) - 1) / 2) * wide
        xs, heights = zip(*series[name], strict=True)
        axes.bar(
            [x + shift for x in xs], heights, 0.9 * wide, color=_COLOURS[name], label=name
        )
    axes.set_xticks(range(len(rows)), [row.spec.row for row in rows], fontsize="small")


def _numbered(rows: Sequence[FoundRow]) -> bool:
    return all(re.match(r"\d", row.spec.row) for row in rows)


def _lines(axes: "Axes", rows: Sequence[FoundRow]) -> None:
    for name, colour in _COLOURS.items():
        points = [
            (float(row.spec.row.split()[0]), value)
            for row in rows
            if (value := _values(row)[name]) is not None
        ]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, "o-", color=colour, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(" ".join(rows[0].spec.row.split()[1:]))


def _curves(title: str, panels: Mapping[str, Mapping[str, Points]], path: Path) -> Path:
    figure = Figure(figsize=(8, 3.2 * len(panels)), layout="constrained")
    figure.suptitle(title)
    every: Any = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (panel, curves) in zip(every, panels.items(), strict=True):
        for (name, points), colour in zip(curves.items(), _LINES, strict=False):
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, label=name)
        axes.set_title(panel, loc="left", fontsize="medium")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
    return path
