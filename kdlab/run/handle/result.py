"""The result of a run: a plain mapping that reads well in a notebook."""

import html
from typing import Any

from kdlab.report import page
from kdlab.report.costs import HEAD, cost_rows
from kdlab.report.table import NAMES, NO_SPEEDS, not_trained_on, number, speeds_tell

_COLUMNS = (
    "student_top1", "student_top1_best", "global_top1", "samples_per_second", "wall_seconds",
    "samples_lost", "samples_repeated",
)  # fmt: skip


class Result(dict[str, Any]):
    """The keys of `kdlab run --json`."""

    def verdict(self) -> str:
        """Whether the teacher helped, in a sentence; empty where that was not compared."""
        return (self.get("verdict") or {}).get("sentence", "")

    def _repr_html_(self) -> str:
        rows = self.get("runs") or []
        no = "" if speeds_tell(rows) else "samples_per_second"
        known = {key for row in rows for key in row if row[key] is not None}
        keys = [key for key in _COLUMNS if key in known and key != no]
        body = [
            [f"{NAMES.get(r['source'], r['source'])}, seed {r['seed']}"]
            + [number(r.get(key)) for key in keys]
            for r in rows
        ]
        shown = [k for k in self if k not in ("runs", "costs", "verdict", "checks")]
        facts = [[k, number(self[k])] for k in shown]
        costs = self.get("costs")
        cost = page.table(HEAD, cost_rows(costs)) if costs else ""
        said = filter(None, (not_trained_on(rows), no and NO_SPEEDS, self.verdict()))
        head = "".join(f"<div>{html.escape(line)}</div>" for line in said)
        return head + page.table(("", *keys), body) + cost + page.table(("", ""), facts)
