"""A sweep in a notebook: a table and a curve that follow it, and a button to stop it."""

from collections.abc import Callable

import ipywidgets as widgets

from kdlab.experiment.folder import ENDED
from kdlab.notebook.live_view import LiveView
from kdlab.run.handle.watched import Watched


class SweepView(LiveView):
    """What is drawn (HTML) follows; a button stops the sweep, closing this does not."""

    def __init__(self, sweep: Watched, drawn: Callable[[], str]) -> None:
        super().__init__(sweep, every_s=0.5)
        self._drawn = drawn
        self.view = widgets.HTML()
        self.button = widgets.Button(description="stop gracefully", icon="stop")
        self.button.on_click(lambda _: sweep.stop())
        self.box = widgets.VBox([self.view, self.button])
        self.look()

    def look(self) -> None:
        self.button.disabled = self._watched.state in ENDED
        self.view.value = self._drawn()

    def end(self) -> str:
        if self._snapshot is not None:  # shows the same
            self.box.layout.display = "none"
        return str(self.view.value)
