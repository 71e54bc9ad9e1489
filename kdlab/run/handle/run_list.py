"""Runs as a table: `kdlab runs`, `kdlab.runs()`."""

import time
from typing import TYPE_CHECKING

from kdlab.report import page
from kdlab.report.table import text_table_left

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

_NO_RUNS = "There are no runs yet. Start one: kdlab run quickstart"
_RUNS = ["run", "experiment", "state", "started", "top-1 %", "wall s"]


class RunList(list["Run"]):
    """Runs, which show themselves as a table."""

    def __repr__(self) -> str:
        return text_table_left(_RUNS, self._rows()) if self else _NO_RUNS

    def _repr_html_(self) -> str:
        return page.table(_RUNS, self._rows()) if self else _NO_RUNS

    def _rows(self) -> list[list[str]]:
        return [_row(run) for run in self]


def _row(run: "Run") -> list[str]:
    status = run.status
    result = status.result or {}
    return [
        run.id,
        str(run.folder.origin().experiment),
        str(status.state),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(status.created)),
        _number(result.get("student_top1"), 2),
        _number(result.get("wall_seconds"), 0),
    ]


def _number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"
