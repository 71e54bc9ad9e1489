"""The table of runs: `kdlab runs`, `kdlab.runs()`."""

import time

from kdlab.codec import to_builtins
from kdlab.errors import BadInput
from kdlab.experiment import folder as folders
from kdlab.report import page
from kdlab.report.table import text_table_left
from kdlab.run.handle.run import Run

_NO_RUNS = "There are no runs yet. Start one: kdlab run quickstart"
_RUNS = ["run", "experiment", "state", "started", "top-1 %", "wall s", "marks"]


class RunList(list[Run]):
    """A list of runs that prints as a table, and as HTML in a notebook."""

    archived = 0  # archived runs left out

    def __repr__(self) -> str:
        if not self and not self.archived:
            return _NO_RUNS
        return "\n".join([text_table_left(_RUNS, self._rows()), *self._notes()])

    def to_json(self) -> list[dict[str, object]]:
        """Return a mapping for each run, as `kdlab runs --json` prints it."""
        return [
            {
                "run_id": run.id,
                "experiment": row[1],
                "state": row[2],
                "created": run.status.created,
                "run_dir": str(run.path),
                "student_top1": (run.status.result or {}).get("student_top1"),
                "wall_seconds": (run.status.result or {}).get("wall_seconds"),
                **to_builtins(run.marks),
            }
            for run, row in zip(self, self._rows(), strict=True)
        ]

    def _repr_html_(self) -> str:
        if not self and not self.archived:
            return _NO_RUNS
        body = page.table(_RUNS, self._rows()) + page.lines(self._notes())
        return page.shown(page.Card("Runs", body))

    def _notes(self) -> list[str]:
        """Lines on runs left out, and on each that MLflow lacks or that cannot be read."""
        left = [f"{self.archived} archived: kdlab runs --all"] if self.archived else []
        return left + [
            f"{run.id}: {status.tracking or status.error}"
            for run in self
            if (status := run.status).tracking or status.state == "unreadable"
        ]

    def _rows(self) -> list[list[str]]:
        return [_row(run) for run in self]


def runs(limit: int = 20, *, archived: bool = False) -> RunList:
    """Return the newest runs, newest first, with archived ones if asked; prints as a table.

    Raises:
        BadInput: fewer than one is asked for.
    """
    if limit < 1:
        raise BadInput(f"limit is {limit}, must be >= 1.")
    every = [Run(folder) for folder in reversed(folders.all_folders())]
    shown = [run for run in every if archived or not run.marks.archived]
    listed = RunList(shown[:limit])
    listed.archived = len(every) - len(shown)
    return listed


def _row(run: Run) -> list[str]:
    status = run.status
    result = status.result or {}
    return [
        run.id,
        str(run.origin().experiment),
        str(status.state),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(status.created)),
        _number(result.get("student_top1"), 2),
        _number(result.get("wall_seconds"), 0),
        str(run.marks),
    ]


def _number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"
