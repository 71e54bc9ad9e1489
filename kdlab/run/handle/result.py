"""The result of a run: a plain mapping that reads well in a notebook."""

import html
from typing import Any

from kdlab.report import page
from kdlab.report.costs import HEAD, cost_rows
from kdlab.report.table import NAMES, not_trained_on, number

_COLUMNS = (
    "student_top1", "student_top1_best", "global_top1", "samples_per_second", "wall_seconds",
    "samples_lost", "samples_repeated",
)  # fmt: skip


class Result(dict[str, Any]):
    """The keys of `kdlab run --json`."""

    def _repr_html_(self) -> str:
        rows = self.get("runs") or []
        keys = [key for key in _COLUMNS if any(row.get(key) is not None for row in rows)]
        body = [
            [f"{NAMES.get(r['source'], r['source'])}, seed {r['seed']}"]
            + [number(r.get(key)) for key in keys]
            for r in rows
        ]
        facts = [[k, number(v)] for k, v in self.items() if k not in ("runs", "costs")]
        costs = self.get("costs")
        cost = page.table(HEAD, cost_rows(costs)) if costs else ""
        lost = f"<div>{html.escape(said)}</div>" if (said := not_trained_on(rows)) else ""
        return lost + page.table(("", *keys), body) + cost + page.table(("", ""), facts)
