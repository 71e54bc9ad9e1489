"""A sweep as it goes on: lines in a terminal, a table and a curve in a notebook."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from kdlab.events.event import Event
from kdlab.events.sweeps import SweepStarted, TrialDone
from kdlab.report import chart, page
from kdlab.report.progress import people

if TYPE_CHECKING:
    from kdlab.tuning.handle import Sweep

_QUICK_S, _EACH = 1.0, 20  # of quicker trials every twentieth is a line


class Lines:
    """Feed it events with `see`."""

    def __init__(self) -> None:
        self.console = people()
        self._objectives: Sequence[str] = ()
        self._signs: Sequence[int] = ()
        self._best: list[float] | None = None

    def see(self, event: Event) -> None:
        match event:
            case SweepStarted():
                self._objectives = event.objectives
                self._signs = [1 if d == "minimize" else -1 for d in event.directions]
            case TrialDone():
                line, new = self._of_trial(event)
                quick = (event.seconds or 0.0) < _QUICK_S
                if new or not quick or event.ended % _EACH == 0:
                    self._say(line)
        if line := event.text():
            self._say(line)

    def _of_trial(self, event: TrialDone) -> tuple[str, bool]:
        """A line, and whether it is one to be seen whatever the others are."""
        head = f"  {event.ended}/{event.of_trials}  trial {event.number}"
        if event.state == "failed":
            return f"{head} failed: {str(event.error).splitlines()[0]}", True
        if event.state == "pruned":
            return f"{head} pruned after {event.epoch} epochs", False
        every = (event.values_found or {}).items()
        found = {name: value for name, value in every if value is not None}
        words = [f"{name} {found[name]:.4g}" for name in self._objectives]
        own = [s * found[n] for s, n in zip(self._signs, self._objectives, strict=True)]
        new = bool(event.feasible) and (self._best is None or own < self._best)
        self._best = own if new else self._best
        seconds = "" if event.seconds is None else f"  {event.seconds:.1f} s"
        mark = "  best so far" if new else ""
        mark = mark if event.feasible else "  breaks a constraint"
        return f"{head}  {'  '.join(words)}{seconds}{mark}", new

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
