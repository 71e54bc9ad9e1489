"""Runs side by side: what their specs differ in, then what came out."""

from typing import Any

import yaml

from kdlab.config.load import flat
from kdlab.errors import BadInput
from kdlab.report.table import METHODS, text_table
from kdlab.run.handle import Run, attach

_KEYS = (
    "student_top1",
    "student_top1_best",
    "global_top1",
    "samples_per_second",
    "wall_seconds",
    "samples_lost",
    "samples_repeated",
)


class Comparison:
    """Printable in a terminal and in a notebook."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs

    def differences(self) -> list[tuple[str, list[Any]]]:
        """Spec keys whose values differ, with the value of each run."""
        specs = [
            dict(flat(yaml.safe_load((run.path / "spec.yaml").read_text())))
            for run in self.runs
        ]
        keys = dict.fromkeys(key for spec in specs for key in spec)
        rows = [(key, [spec.get(key, "-") for spec in specs]) for key in keys]
        return [(k, values) for k, values in rows if any(v != values[0] for v in values)]

    def outcomes(self) -> list[tuple[str, list[Any]]]:
        results = [run.status.get("result") or {} for run in self.runs]
        return [(key, [r.get(key, "-") for r in results]) for key in _KEYS]

    def __str__(self) -> str:
        if len(self.runs) == 1:
            return (self.runs[0].path / METHODS).read_text(encoding="utf-8")
        head = ["", *(run.id for run in self.runs)]
        rows = [[key, *map(_short, values)] for key, values in self.differences()]
        outcome = [[key, *map(_short, values)] for key, values in self.outcomes()]
        spec = text_table(head, rows) if rows else "The specs do not differ."
        return f"{spec}\n\n{text_table(head, outcome)}"

    __repr__ = __str__


def compare(*runs: Run | str) -> Comparison:
    """Two or more runs, by object or id; or one that compared several methods itself.

    Raises:
        BadInput: fewer than two, and no such one.
    """
    known = [attach(run) if isinstance(run, str) else run for run in runs]
    if len(known) < 2 and not (known and (known[0].path / METHODS).is_file()):
        raise BadInput(
            "Comparing needs two runs or more, or one of train/ensemble that has finished "
            "several methods (method.compare)."
        )
    return Comparison(known)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
