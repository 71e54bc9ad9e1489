"""Claims and results in the tables of a folder `results`: rows.csv, made.csv and curves.csv.

`rows.csv` has a line for each number of a claim: what is published, the figures that simulate and
measure it, its goal, the simulated and measured numbers, or why these are undefined. `made.csv` has
a line for each kept result: command, machine, versions, seeds, commit and code. Texts on a result
are in its claim's card. `curves.csv` has a line for each recorded curve: "x y; x y; ..." per seed.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reproduce.freshness import Facts
from kdlab.config import folders
from kdlab.config.spec import Spec
from kdlab.report.chart import Points

HERE = Path(__file__).parents[1] / "results"
FOUND = ("simulated", "measured", "mean", "std", "low", "high")
_GIVES = {"simulated": "simulated_by", "measured": "measured_by"}  # names of figures
_NUMBERS = ("published", "over", "of", "within_pct")
_MACHINE = {"system": str, "cores": int, "memory_gib": float, "gpu": str}
Line = dict[str, str]
RowKey = tuple[str, str]  # row and quantity
FoundNumbers = Mapping[str, float | None]  # of FOUND


def names() -> dict[str, Path]:
    """Return the folder of every kept result, by name; that of the current folder wins."""
    places: dict[str, Path] = {}
    for shelf in folders.shelves("registry"):
        for line in _read(shelf / "results" / "made.csv"):
            places.setdefault(line["name"], shelf / "results")
    return dict(sorted(places.items()))


def claimed(name: str) -> list[dict[str, Any]]:
    """Return the rows of a claim, as a `Table` takes them."""
    columns = ("row", "quantity", *_NUMBERS, *_GIVES.values(), "marked", "goal")
    fields = {column: field for field, column in _GIVES.items()}
    return [
        {
            fields.get(column, column): float(line[column])
            if column in _NUMBERS
            else line[column]
            for column in columns
            if line[column]
        }
        for line in _read(HERE / "rows.csv")
        if line["name"] == name
    ]


def made_of(folder: Path, name: str) -> dict[str, Any]:
    """Return how, where and with which code a kept result was made."""
    (line,) = (one for one in _read(folder / "made.csv") if one["name"] == name)
    chosen = {"chosen": line["chosen"]} if line.get("chosen") else {}
    run = {key: line[key].split() for key in ("run", "spec_hash") if line[key]}
    measurement = {key: ids[0] if len(ids) == 1 else ids for key, ids in run.items()}
    seeds = {"seeds": [int(seed) for seed in line["seeds"].split()]} if run else {}
    return {
        "name": name,
        "command": line["command"],
        "seconds": float(line["seconds"]),
        "machine": {k: kind(line[k]) if line[k] else None for k, kind in _MACHINE.items()},
        "versions": _parts(line["versions"]),
        "commit": line["commit"],
        "code": _parts(line["code"]),
        "measurement": seeds | measurement | chosen,
    }


def found_in(folder: Path, name: str) -> dict[RowKey, FoundNumbers]:
    """Return the numbers of a kept result, by row and quantity."""
    return {
        (line["row"], line["quantity"]): {
            key: float(line[key]) if line[key] else None for key in FOUND
        }
        for line in _read(folder / "rows.csv")
        if line["name"] == name
    }


def undefined_in(folder: Path, name: str) -> dict[RowKey, str]:
    """Return the reasons why there is nothing to measure, by row and quantity."""
    return {
        (line["row"], line["quantity"]): why
        for line in _read(folder / "rows.csv")
        if line["name"] == name and (why := line.get("undefined"))
    }


def curves_in(folder: Path, name: str) -> dict[str, list[Points]]:
    """Return the curves of a kept result by name: the points (x, y) of each seed."""
    return {
        line["curve"]: [
            [(float(x), float(y)) for x, y in map(str.split, points.split("; "))]
            for points in line["points"].split(" | ")
        ]
        for line in _read(folder / "curves.csv")
        if line["name"] == name
    }


def keep(folder: Path, facts: Facts, rows: Sequence[Spec]) -> Path:
    """Write a result of these claimed rows into the tables of a folder, in place of an older one.

    A result that was only simulated leaves the measured numbers there and their origin unchanged.
    """
    name, folder = facts["name"], folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    numbers: dict[RowKey, FoundNumbers] = {
        (one["row"], one["quantity"]): one for one in facts["rows"]
    }
    nothing: FoundNumbers = dict.fromkeys(FOUND)  # of a row that was left out this time
    old, origin = {}, _made_line(facts)
    why: dict[RowKey, str] = {
        (one["row"], one["quantity"]): one["undefined"]
        for one in facts["rows"]
        if one.get("undefined")
    }
    if all(one["measured"] is None for one in numbers.values()):
        old, why = found_in(folder, name), undefined_in(folder, name)
    if any(one["measured"] is not None for one in old.values()):
        (origin,) = (one for one in _read(folder / "made.csv") if one["name"] == name)
    lines = []
    for row in rows:
        fields = row.fields()
        key = fields["row"], fields["quantity"]
        before = {k: v for k, v in old.get(key, {}).items() if k != "simulated"}
        cells = {_GIVES.get(k, k): v for k, v in fields.items() if (k, v) != ("over", 1.0)}
        cells |= {k: numbers.get(key, nothing)[k] for k in FOUND} | before
        cells |= {"undefined": why[key]} if key in why else {}
        lines.append({"name": name} | {k: _text(v) for k, v in cells.items()})
    if curves := facts.get("curves"):
        drawn = [(curve, " | ".join(map(_points, each))) for curve, each in curves.items()]
        courses = [{"name": name, "curve": curve, "points": text} for curve, text in drawn]
        _write(folder / "curves.csv", name, courses)
    _write(folder / "made.csv", name, [origin])
    return _write(folder / "rows.csv", name, lines)


def _made_line(facts: Facts) -> Line:
    run = facts["measurement"]
    line = {key: facts[key] for key in ("name", "command", "seconds", "commit")}
    line |= {key: facts["machine"][key] for key in _MACHINE}
    for key in ("versions", "code"):
        line[key] = "; ".join(f"{part} {what}" for part, what in facts[key].items())
    for key in ("seeds", "run", "spec_hash"):
        ids = run.get(key, "")
        line[key] = ids if isinstance(ids, str) else " ".join(map(str, ids))
    line |= {"chosen": run["chosen"]} if "chosen" in run else {}
    return {key: _text(value) for key, value in line.items()}


def _points(points: Points) -> str:
    return "; ".join(f"{x:.4g} {y:.4g}" for x, y in points)


def _parts(text: str) -> dict[str, str]:
    pairs = (part.partition(" ") for part in text.split("; ") if part)
    return {name: what for name, _, what in pairs}


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return "" if value is None else str(value)


def _read(path: Path) -> list[Line]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, name: str, lines: Iterable[Line]) -> Path:
    """Replace the lines of a result in a table, and sort all lines by name."""
    every = [line for line in _read(path) if line["name"] != name] + list(lines)
    columns = dict.fromkeys(key for line in every for key in line)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(every, key=lambda line: line["name"]))
    return path
