"""A benchmark's report: figures with spread, goal and verdict, and its machine."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NotRequired, TypedDict

from kdlab.report.machine import machine, versions
from kdlab.report.table import text_table

EmitLine = Callable[[str], None]  # takes a line about how it goes


class Figure(TypedDict):
    name: str
    value: float  # median
    low: float  # smallest
    high: float  # largest
    values: list[float]  # all of them
    unit: str
    goal: str | None  # ">= 0.97"; None: nothing was promised
    holds: bool | None


class Report(TypedDict):
    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    figures: list[Figure]
    undefined: NotRequired[
        dict[str, str]
    ]  # why, of figures that there are none of, by name
    curves: NotRequired[dict[str, list[list[tuple[float, float]]]]]  # of each seed, by name


def figure(
    name: str, found: float | Sequence[float], unit: str, goal: str | None = None
) -> Figure:
    """One figure, of one value or several."""
    values = [found] if isinstance(found, int | float) else found
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


def at(where: str, *figures: Figure) -> list[Figure]:
    """These figures, named for where they were found: `name/where`."""
    for one in figures:
        one["name"] += f"/{where}"
    return list(figures)


def over(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios of what was measured side by side."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def meets(value: float, goal: str) -> bool:
    """Whether a value is as ">= 0.97", "<= 1" or "0.9 to 1.1" has it."""
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
