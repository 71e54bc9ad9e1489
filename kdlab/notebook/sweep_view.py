"""The live view of a sweep, with a button to stop it."""

import time
from collections.abc import Callable, Mapping

from kdlab.events.log import EventReader
from kdlab.experiment.folder import ENDED
from kdlab.notebook.controls import Controls
from kdlab.notebook.live_view import LiveView
from kdlab.notebook.sweep_watch import SweepWatch
from kdlab.run.handle.job_handle import JobHandle

_IMPORTANCE_S = 10.0  # between computations from the study
_DOTS = ("complete", "pruned")


class SweepView(LiveView):
    """A view of a sweep; its button stops the sweep, closing it does not.

    Args:
        sweep: the sweep.
        drawn: returns the sweep as HTML, for a saved notebook.
        importance: returns the importance of each key.
    """

    def __init__(
        self,
        sweep: JobHandle,
        drawn: Callable[[], str],
        importance: Callable[[], Mapping[str, float]],
    ) -> None:
        super().__init__(sweep, 0.5, f'kdlab.attach_sweep("{sweep.id}").live()')
        self._drawn, self._importance = drawn, importance
        self.watch = SweepWatch()
        self._read = EventReader(sweep.folder.events)
        self._shares: Mapping[str, float] = {}
        self._shares_at = 0.0
        self._shares_of = 0  # trials that had ended at `_shares_at`
        self.controls = Controls(self.page, {"stop": lambda _: sweep.stop()})
        self.update()

    def _reset(self) -> None:
        self.page.reset(self.watch.curves, _DOTS)

    def update(self) -> None:
        with self._lock:
            for event in self._read():
                self.watch.apply(event)
            self._update_importance()
            over = self._watched.state in ENDED
            self.controls.show([] if over else ["stop"])
            self.page.state = self.watch.page(self._shares)
            if not self.page.add(self.watch.take_news()):
                self._reset()

    def _update_importance(self) -> None:
        late = (
            time.monotonic() - self._shares_at > _IMPORTANCE_S or self.watch.state in ENDED
        )
        if late and self.watch.ended > self._shares_of:
            self._shares = self._importance()
            self._shares_of, self._shares_at = self.watch.ended, time.monotonic()

    def end(self) -> str:
        with self._lock:
            self.watch.state = self._watched.state
            self.page.state = self.watch.page(self._shares)
        return self._drawn()
