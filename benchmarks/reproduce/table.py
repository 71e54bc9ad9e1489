"""A table or figure of a paper: what is published, what is simulated, what is measured.

Only predicted numbers count as evidence. A number of the paper that a simulation takes as it is
is an input; one that a rate was fitted to is no evidence for that rate.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Annotated, Any, Literal

from benchmarks.reproduce.freshness import PACKAGE, Facts, code_of
from benchmarks.reproduce.measurement import MeasurementSpec
from benchmarks.reproduce.result import FoundNumbers
from kdlab.config import Fault, register
from kdlab.config.spec import POSITIVE, Spec
from kdlab.report.chart import Points
from kdlab.report.figures import meets
from kdlab.report.machine import git_commit, machine, versions
from kdlab.report.table import text_table

Origin = Literal["input", "fitted", "predicted"]
_NUMBER = r"-?\d+(\.\d+)?"
_GOAL = re.compile(rf"(>=|<=) {_NUMBER}|{_NUMBER} to {_NUMBER}")
_HEAD = ("", "", "published", "simulated", "is", "off", "measured", "")


@dataclass(frozen=True, kw_only=True)
class Row(Spec):
    """One number of a table.

    row, quantity: what was measured (such as a system or model), and which quantity of it.
    published: in the paper; null where it gives none.
    simulated: name of a figure of the simulation. An input of the paper may divide it (`over`)
        or be divided by it (`of`).
    marked: origin of the simulated number, or of the published one where nothing is simulated.
    measured: name of a value of the measurement.
    within_pct: largest deviation that is promised of a predicted number, percent.
    goal: range that is promised of the measured number, such as ">= 0.95" or "0.9 to 1.1".
    """

    row: str
    quantity: str
    published: float | None = None
    simulated: str | None = None
    over: Annotated[float, POSITIVE] = 1.0
    of: Annotated[float, POSITIVE] | None = None
    marked: Origin | None = None
    measured: str | None = None
    within_pct: Annotated[float, POSITIVE] | None = None
    goal: str | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if self.goal is not None and not _GOAL.fullmatch(self.goal):
            yield Fault(
                "goal",
                f"is {self.goal!r}; it must be such as '>= 0.95', '<= 0' or '0.9 to 1.1'",
            )
        if self.within_pct is not None and self.marked != "predicted":
            yield Fault("within_pct", f"is promised of a number that is {self.marked}")
        if self.simulated is not None and self.marked is None:
            yield Fault("marked", "must say what the simulated number is")


@register("reproduce/table")
@dataclass(frozen=True, kw_only=True)
class Table(Spec):
    """A table or a figure.

    source: paper, and where in it.
    published_of: models, data and machines that the published numbers are of, in a few words.
    code: parts of the package that are measured, such as `cluster/reader`.
    minutes: that it takes on two cores.
    rows: its numbers; empty takes those of `results/rows.csv` that have its name.
    simulation: a card of `registry/simulations`; null simulates nothing.
    measurement: null measures nothing.
    scaled: how the measurement differs from that of the paper.
    notes: what is known to be wrong or contradictory in print, and other things to know.
    picture: bars of all rows, or lines over the number that a row's name begins with.
    """

    source: str
    minutes: Annotated[float, POSITIVE]
    rows: tuple[Row, ...] = ()
    published_of: str = ""
    code: tuple[str, ...] = ()
    simulation: str | None = None
    measurement: MeasurementSpec | None = None
    scaled: str = ""
    notes: tuple[str, ...] = ()
    picture: Literal["bars", "lines"] = "bars"

    def cross_faults(self) -> Iterator[Fault]:
        for number, row in enumerate(self.rows):
            asked = {"simulated": self.simulation, "measured": self.measurement}
            for what, there in asked.items():
                if getattr(row, what) is not None and there is None:
                    yield Fault(f"rows.{number}.{what}", "is asked for, and there is none")
        if self.measurement is not None and not self.code:
            yield Fault("code", "must name the parts of kdlab that are measured")
        if any(row.published is not None for row in self.rows) and not self.published_of:
            yield Fault("published_of", "must say what the published numbers are of")


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row with its numbers."""

    spec: Row
    simulated: float | None
    measured: tuple[float, ...]
    undefined: str = ""  # why there is nothing to measure

    def facts(self) -> dict[str, Any]:
        values = self.measured
        numbers = {
            "simulated": self.simulated,
            "measured": median(values) if values else None,
            "mean": fmean(values) if values else None,
            "std": stdev(values) if len(values) > 1 else None,
            "low": min(values, default=None),
            "high": max(values, default=None),
        }
        rounded = {key: _rounded(value) for key, value in numbers.items()}
        return facts_of(self.spec, rounded, self.undefined)


def facts_of(spec: Row, numbers: FoundNumbers, undefined: str = "") -> dict[str, Any]:
    """Return a row of a result, as `result.json` has it."""
    return {
        "row": spec.row,
        "quantity": spec.quantity,
        "published": spec.published,
        "is": spec.marked,
        "off_pct": _rounded(off_pct(spec, numbers["simulated"])),
        "holds": holds(spec, numbers),
        "undefined": undefined,
        **numbers,
    }


def off_pct(spec: Row, simulated: float | None) -> float | None:
    """Deviation of a predicted number from the published one, percent."""
    if spec.marked != "predicted" or simulated is None or not spec.published:
        return None
    return 100 * (simulated / spec.published - 1)


def holds(spec: Row, numbers: FoundNumbers) -> bool | None:
    """Check the promises of a row; None if it has none, or nothing was measured.

    A goal of seeds must hold for the worst of them, one of rates for their median.
    """
    off, within, goal = off_pct(spec, numbers["simulated"]), spec.within_pct, spec.goal
    if within is not None and off is not None and abs(off) > within:
        return False
    if goal is None or numbers["measured"] is None:
        return None if within is None or off is None else True
    ends = {">=": ("low",), "<=": ("high",)}.get(goal[:2], ("low", "high"))
    judged = [numbers[end] for end in (ends if is_mean(spec.quantity) else ("measured",))]
    return all(each is not None and meets(each, goal) for each in judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Result of a table or figure. `facts()` is what a result card holds."""

    name: str
    spec: Table
    rows: tuple[MeasuredRow, ...]
    figures: tuple[Path, ...]  # pictures that were drawn
    measurement: Mapping[str, Any] = field(default_factory=dict)  # seeds, hash of the spec
    curves: Mapping[str, Sequence[Points]] = field(default_factory=dict)  # of each seed
    about: str = ""  # first line of the card
    command: str = ""  # that made this
    seconds: float = 0.0  # that it took
    files: tuple[Path, ...] = ()  # all that was written

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.spec.source,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "machine": machine(),
            "versions": versions(),
            "commit": git_commit(PACKAGE, marks=True) or "",
            "code": code_of(self.spec.code),
            "published_of": self.spec.published_of,
            "measurement": dict(self.measurement),
            "scaled": self.spec.scaled,
            "notes": list(self.spec.notes),
            "rows": [row.facts() for row in self.rows],
            "curves": dict(self.curves),
        }

    def table(self) -> str:
        """Return the table for a terminal."""
        return printed(self.facts())


def printed(facts: Facts) -> str:
    """The table of a result, for a terminal."""
    lines = [[str(cell) for cell in line] for line in cells(facts)]
    below = [f"Published: {facts['published_of']}"] if facts.get("published_of") else []
    below += [f"Scaled: {facts['scaled']}"] if facts["scaled"] else []
    below += [f"Note: {note}" for note in facts["notes"]]
    head = f"{facts['name']}: {facts['source']}"
    return "\n".join([head, "", text_table(_HEAD, lines), "", *below]).rstrip()


def cells(facts: Facts) -> list[list[str]]:
    """Cells of the rows: row, quantity, published, simulated, is, off, measured, verdict."""
    verdict = {True: "holds", False: "FAILS", None: ""}
    return [
        [
            row["row"],
            row["quantity"],
            in_digits(row["published"]),
            in_digits(row["simulated"]),
            row["is"] or "",
            "" if row["off_pct"] is None else f"{row['off_pct']:+.1f} %",
            _spread(row),
            verdict[row["holds"]],
        ]
        for row in facts["rows"]
    ]


def _spread(row: Facts) -> str:
    """Write the measured numbers: mean ± std over seeds, or the median and its range."""
    if row["measured"] is None:
        return f"undefined: {why}" if (why := row.get("undefined")) else ""
    if row["std"] is not None and is_mean(row["quantity"]):
        return f"{row['mean']:.2f} ± {row['std']:.2f}"
    if row["low"] == row["high"]:
        return in_digits(row["measured"])
    low, high = (in_digits(float(f"{row[key]:.3g}")) for key in ("low", "high"))
    return f"{in_digits(row['measured'])}, {low} to {high}"


def typical(quantity: str, values: Sequence[float]) -> float:
    """The mean (over seeds) of percent and points, the median of all else."""
    return fmean(values) if is_mean(quantity) else median(values)


def is_mean(quantity: str) -> bool:
    return "%" in quantity or "points" in quantity


def in_digits(value: float | None) -> str:
    """Write four digits, or all before the point; None is an empty text."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
