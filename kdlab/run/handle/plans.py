"""The plans of a blockwise run for people: which device does what, and a drawn step."""

import html
from dataclasses import dataclass
from pathlib import Path

from kdlab.config.home import read_as
from kdlab.errors import NotFoundError
from kdlab.experiment.folder import RunFolder
from kdlab.report import page
from kdlab.report.page import Card


@dataclass(frozen=True, slots=True)
class PlanSheet:
    """A plan as a table with predicted costs, and its Gantt chart once an epoch has ended."""

    member: str
    table: str
    gantt: Path | None

    def __str__(self) -> str:
        return f"{self.member}\n{self.table}"

    __repr__ = __str__

    def card(self) -> Card:
        words = "Gantt of the first epoch's last steps"
        drawn = "" if self.gantt is None else self.gantt.read_text("utf-8", "replace")
        picture = page.image(drawn, words) if drawn else ""
        return Card(self.member, f"<pre>{html.escape(self.table)}</pre>{picture}")

    def _repr_html_(self) -> str:
        return page.shown(self.card())


class PlanSheets(list[PlanSheet]):
    """A list of plans that a notebook shows one below the other."""

    def _repr_html_(self) -> str:
        return page.shown(*(sheet.card() for sheet in self))


@dataclass(frozen=True, slots=True)
class _Planned:
    """The part of a member's plan.json that is shown."""

    table: str


def plans(run: RunFolder) -> PlanSheets:
    """Return the plans made so far; NotFoundError where there is none."""
    root = run.path / "members"
    sheets = PlanSheets()
    for path in run.of_members("plan.json"):
        gantt = path.with_name("gantt.svg")
        member = path.parent.relative_to(root).as_posix()
        table = read_as(_Planned, path).table
        sheets.append(PlanSheet(member, table, gantt if gantt.is_file() else None))
    if not sheets:
        raise NotFoundError(
            f"Run {run.run_id} has no plan; only a pipeline of blocks makes one, after "
            "profiling."
        )
    return sheets
