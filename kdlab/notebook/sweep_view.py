"""A sweep in a notebook: a table and a curve that follow it, and a button to stop it."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import ipywidgets as widgets
from IPython.display import HTML, display

from kdlab.experiment.folder import ENDED
from kdlab.notebook.follower import follower
from kdlab.run.handle.watched import Watched

if TYPE_CHECKING:
    from IPython.core.display_functions import DisplayHandle

_TICK_S = 0.5


class SweepView:
    """The table follows; a button stops the sweep, closing this does not.

    Args:
        sweep: to be watched.
        drawn: where it stands, as HTML.
    """

    def __init__(self, sweep: Watched, drawn: Callable[[], str]) -> None:
        self.sweep, self._drawn = sweep, drawn
        self._closing = threading.Event()
        self._shown = ""
        self.view = widgets.HTML()
        self.button = widgets.Button(description="stop gracefully", icon="stop")
        self.button.on_click(lambda _: sweep.stop())
        self.box = widgets.VBox([self.view, self.button])
        self._snapshot: DisplayHandle | None = None
        self._look()
        self._thread = follower(self._follow, "kdlab-sweep")

    def show(self) -> "SweepView":
        display(self.box)
        self._snapshot = display(HTML(""), display_id=True)
        self._thread.start()
        return self

    def _ipython_display_(self) -> None:
        """Shown already, by `show`."""

    def _follow(self) -> None:
        while not self._closing.wait(_TICK_S):
            if self._look():
                break
        if self._snapshot is not None:  # stays when the notebook is saved
            self.box.layout.display = "none"
            self._snapshot.update(HTML(self._shown))

    def _look(self) -> bool:
        """Whether the sweep has ended."""
        ended = self.sweep.state in ENDED
        text = self._drawn()
        if text != self._shown:
            self._shown = self.view.value = text
        self.button.disabled = ended
        return ended

    def close(self) -> None:
        """Stop watching. The sweep goes on."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self.box.close()
