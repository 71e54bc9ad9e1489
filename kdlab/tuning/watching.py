"""A sweep as it goes on: lines in a terminal."""

from rich.text import Text

from kdlab.events.event import Event
from kdlab.events.sweep_state import SweepState
from kdlab.events.sweeps import TrialDone
from kdlab.report.progress import people
from kdlab.report.table import number

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
