"""A sweep as it goes on: lines in a terminal, a table and a curve in a notebook."""

import html
from typing import TYPE_CHECKING

from rich.text import Text

from kdlab.events.event import Event
from kdlab.events.sweep_state import SweepState
from kdlab.events.sweeps import TrialDone
from kdlab.report import chart, page
from kdlab.report.progress import people
from kdlab.report.table import number

if TYPE_CHECKING:
    from kdlab.tuning.handle import Sweep

_QUICK_S, _EACH = 1.0, 20  # of quicker trials every twentieth is a line


class Lines:
    """Feed it events with `see`."""

    def __init__(self) -> None:
        self.console = people()
        self.sweep = SweepState()

    def see(self, event: Event) -> None:
        best = self.sweep.best
        self.sweep.see(event)
        if isinstance(event, TrialDone):
            new = self.sweep.best is not best
            quick = event.state != "failed" and (event.seconds or 0.0) < _QUICK_S
            if new or not quick or event.ended % _EACH == 0:
                self._say(self._of_trial(event, " best so far" if new else ""))
        if line := event.text():
            self._say(line)

    def _of_trial(self, event: TrialDone, mark: str) -> str:
        head = f"  {event.ended}/{event.of_trials}  trial {event.number}"
        if event.state == "failed":
            return f"{head} failed: {str(event.error).splitlines()[0]}"
        if event.state == "pruned":
            return f"{head} pruned after {event.epoch} epochs"
        found = event.values_found or {}
        words = [f"{name} {number(found.get(name))}" for name in self.sweep.objectives]
        seconds = "" if event.seconds is None else f"  {event.seconds:.1f} s"
        mark = " breaks a constraint" if event.feasible is False else mark
        return f"{head}  {'  '.join(words)}{seconds} {mark}".rstrip()

    def _say(self, line: str) -> None:
        # Text, not markup: names from configs must not be read as colours.
        self.console.print(Text(line), highlight=False, soft_wrap=True)


def as_html(sweep: "Sweep") -> str:
    """Where it stands: the curve of the best so far, and the best trials."""
    spec, rows = sweep.spec, sweep.rows()
    name = spec.objectives[0].metric
    sign = spec.signs()[0]
    each, best = list[tuple[float, float]](), list[tuple[float, float]]()
    for row in rows:
        if row.values is None:
            continue
        value = float(row.values[name])
        each.append((float(row.number), value))
        if row.feasible:
            known = min([sign * v for _, v in best[-1:]] + [sign * value])
            best.append((float(row.number), sign * known))
    count = len([r for r in rows if r.state in ("complete", "pruned", "fail")])
    head = (
        f"<b>Sweep {html.escape(sweep.id)}</b> {html.escape(sweep.state)}, {count} of "
        f"{spec.trials} trials ended"
    )
    points = {"best so far": best, "trial": each}
    panel = chart.Panel(name, points, across="number of the trial")
    curve = page.image(chart.svg([panel]), name) if len(each) > 1 else ""
    columns, cells = sweep._cells(12)
    error = sweep.status.error
    said = f"<pre>{html.escape(str(error))}</pre>" if error else ""
    return f"{head}{said}<br>{curve}{page.table(columns, cells)}"
