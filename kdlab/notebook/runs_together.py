"""Several runs in one live view, with a colour and a line each, without controls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdlab.events.log import EventReader
from kdlab.events.run_state import PANELS
from kdlab.experiment.folder import ENDED
from kdlab.notebook import live_state, picture
from kdlab.notebook.live_view import LiveView
from kdlab.notebook.watch import Watch

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run


class _All:
    """Several runs as one; ended when all have ended."""

    def __init__(self, runs: "Sequence[Run]") -> None:
        self.runs = runs
        self.id = "+".join(run.id for run in runs)

    @property
    def state(self) -> str:
        states = [run.state for run in self.runs]
        going = [state for state in states if state not in ENDED]
        return going[0] if going else states[0]


class RunsTogether(LiveView):
    """View of `kdlab.live(run, another)`: each run's current member."""

    def __init__(self, runs: "Sequence[Run]") -> None:
        named = ", ".join(f'kdlab.attach("{run.id}")' for run in runs)
        super().__init__(_All(runs), 0.25, f"kdlab.live({named})")
        self.runs = runs
        self.watches = {run.id: Watch() for run in runs}
        self._reads = [EventReader(run.folder.events) for run in runs]
        self._chapters: list[tuple[str, int]] = []
        self.update()

    def __repr__(self) -> str:
        return f"RunsTogether({', '.join(run.id for run in self.runs)})"

    def _reset(self) -> None:
        order = list(PANELS)
        curves = {
            (*key, label): curve
            for label, watch in self.watches.items()
            for key, curve in watch.curves.items()
        }
        self._chapters = [watch.chapter for watch in self.watches.values()]
        self.page.reset(dict(sorted(curves.items(), key=lambda c: order.index(c[0][0]))))

    def update(self) -> None:
        with self._lock:
            for read, watch in zip(self._reads, self.watches.values(), strict=True):
                for event in read():
                    watch.apply(event)
            news = [
                ((panel, name, label), x, y)
                for label, watch in self.watches.items()
                for panel, name, x, y in watch.take_news()
            ]
            self.page.state = live_state.of_runs(self.watches)
            chapters = [watch.chapter for watch in self.watches.values()]
            if chapters != self._chapters or not self.page.add(news):
                self._reset()

    def end(self) -> str:
        with self._lock:
            for run, watch in zip(self.runs, self.watches.values(), strict=True):
                watch.state = run.state
            self.page.state = live_state.of_runs(self.watches)
            return picture.several_runs(self.watches)
