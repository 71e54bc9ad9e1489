"""The result of a run: a plain mapping that reads well in a notebook."""

from typing import Any

from kdlab.report import page
from kdlab.report.costs import HEAD, cost_rows
from kdlab.report.page import Card, CardPage, Presentable
from kdlab.report.table import NAMES, NO_SPEEDS, not_trained_on, number, speeds_tell
from kdlab.report.verdict import shown as verdict_shown

_COLUMNS = (
    "student_top1", "student_top1_best", "global_top1", "samples_per_second", "wall_seconds",
    "samples_lost", "samples_repeated",
)  # fmt: skip


class Result(Presentable, dict[str, Any]):
    """The keys of `kdlab run --json`."""

    def verdict(self) -> str:
        """A sentence on whether the teacher helped; empty where nothing was compared."""
        return (self.get("verdict") or {}).get("sentence", "")

    def document(self, title: str = "", detail: str = "", state: str = "") -> CardPage:
        """A page with the members, the costs of the student and all other facts."""
        rows, costs = self.get("runs") or [], self.get("costs")
        no = "" if speeds_tell(rows) else "samples_per_second"
        measured = {key for row in rows for key in row if row[key] is not None}
        keys = [key for key in _COLUMNS if key in measured and key != no]
        body = [
            [f"{NAMES.get(r['source'], r['source'])}, seed {r['seed']}"]
            + [number(r.get(key)) for key in keys]
            for r in rows
        ]
        shown = [k for k in self if k not in ("runs", "costs", "verdict", "checks")]
        tables = {
            "Results": page.table(("training", *keys), body) if rows else "",
            "Costs": page.table(HEAD, cost_rows(costs)) if costs else "",
            "Run": page.table((), [[k, number(self[k])] for k in shown]) if shown else "",
        }
        cards = [Card(name, table) for name, table in tables.items() if table]
        lost, speeds = not_trained_on(rows), no and NO_SPEEDS
        lines = [("warn", lost), ("plain", speeds), verdict_shown(self.get("verdict"))]
        return CardPage(title, cards, lines, detail, state)
