"""A benchmark's report: figures with spread, goal and verdict, and its machine."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NotRequired, TypedDict

from kdlab.report.machine import machine, versions
from kdlab.report.table import text_table

EmitLine = Callable[[str], None]  # prints a line of progress


class Figure(TypedDict):
    name: str
    value: float  # median
    low: float  # smallest
    high: float  # largest
    values: list[float]  # all measurements
    unit: str
    goal: str | None  # ">= 0.97"; None: no goal
    holds: bool | None


class Report(TypedDict):
    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    figures: list[Figure]
    undefined: NotRequired[dict[str, str]]  # reasons, by name of a figure without value
    curves: NotRequired[dict[str, list[list[tuple[float, float]]]]]  # by name, of each seed


def figure(
    name: str, measured: float | Sequence[float], unit: str, goal: str | None = None
) -> Figure:
    """Create a figure from one value or several."""
    values = [measured] if isinstance(measured, int | float) else measured
    middle = median(values)
    return Figure(
        name=name,
        value=middle,
        low=min(values),
        high=max(values),
        values=[float(value) for value in values],
        unit=unit,
        goal=goal,
        holds=None if goal is None else meets(middle, goal),
    )


def at(place: str, *figures: Figure) -> list[Figure]:
    """Append a place to the names of figures: `name/place`."""
    for each in figures:
        each["name"] += f"/{place}"
    return list(figures)


def over(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return element-wise ratios of measurements made side by side."""
    return [top / bottom for top, bottom in zip(numerators, denominators, strict=True)]


def meets(value: float, goal: str) -> bool:
    """Return whether a value meets a goal such as ">= 0.97", "<= 1" or "0.9 to 1.1"."""
    low, between, high = goal.partition(" to ")
    if between:
        return float(low) <= value <= float(high)
    sign, bound = goal.split()
    return value >= float(bound) if sign == ">=" else value <= float(bound)


def report(name: str, figures: list[Figure]) -> Report:
    return Report(name=name, machine=machine(), versions=versions(), figures=figures)


def printed(result: Report) -> str:
    verdict = {True: "holds", False: "FAILS", None: ""}
    rows = [
        [
            f["name"],
            f"{f['value']:.4g}",
            f"{f['low']:.4g}..{f['high']:.4g}",
            f["unit"],
            f["goal"] or "",
            verdict[f["holds"]],
        ]
        for f in result["figures"]
    ]
    undefined = result.get("undefined", {})
    rows += [[name, "undefined", "", "", "", why] for name, why in undefined.items()]
    where = result["machine"]
    table = text_table(["figure", "median", "range", "unit", "goal", ""], rows)
    return f"{table}\n{where['cores']} cores, {where['gpu'] or 'no GPU'}, {where['system']}"
