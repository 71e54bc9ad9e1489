"""What follows a run or a sweep in a notebook: widgets, and the thread that keeps them so."""

import html
import threading
from abc import ABC, abstractmethod
from contextvars import copy_context
from typing import TYPE_CHECKING, Protocol, Self

import ipywidgets as widgets
from IPython.display import HTML, display

from kdlab.experiment.folder import ENDED
from kdlab.notebook.live_widget import LiveWidget
from kdlab.run.handle.job_handle import in_marimo

if TYPE_CHECKING:
    from IPython.core.display_functions import DisplayHandle


class Viewed(Protocol):
    """A run, a sweep, or several."""

    id: str

    @property
    def state(self) -> str: ...


class LiveView(ABC):
    """Shown in a cell, `again` as often. Closing it or losing its page touches nothing else."""

    def __init__(self, watched: Viewed, every_s: float, again: str) -> None:
        self._watched, self._every_s = watched, every_s
        self.page = LiveWidget(watched.id, again, self.greeted)
        self.box = widgets.VBox([self.page])
        self._closing = threading.Event()
        self._lock = threading.Lock()  # callbacks of any thread read what was seen
        self._snapshot: DisplayHandle | None = None
        # A thread without a context of its own speaks for whatever request the kernel got last.
        # ipykernel 7.4 sends a page's answers to the subshell of that request, and of a reloaded
        # page that is one which is gone a moment later: all that the page says is then refused
        # ("Unknown subshell_id"), so curves are never asked for and buttons do nothing.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._follow,), name="kdlab-live", daemon=True
        )

    def show(self) -> Self:
        """Display it, and a picture that stays when the notebook is saved."""
        if not in_marimo():  # there the cell's value is shown, as _display_ has it
            display(self.box)
            self._snapshot = display(HTML(""), display_id=True)
        self.follow()
        return self

    def _display_(self) -> object:
        """What marimo shows of it: the view with its controls; ipywidgets it has not."""
        return self.page

    def follow(self) -> None:
        """Watch without showing anything."""
        self._thread.start()

    def _ipython_display_(self) -> None:  # noqa: B027 - nothing is left to do
        """Shown already, by `show`."""

    def _follow(self) -> None:
        while not self._closing.wait(self._every_s):
            ended = self._watched.state in ENDED  # looked at first: nothing is missed
            self.look()
            if ended:
                break
        still = self.end()
        if self._snapshot is not None:
            # Hidden where the live view is on the page, which shows the same (live.js).
            name = html.escape(self._watched.id)
            last = HTML(f'<div class="kd-still" data-of="{name}">{still}</div>')
            # For the cell that runs by now, by a thread without a context: nbclient, which
            # executes notebooks without a page, leaves out what another cell says.
            sends = threading.Thread(target=self._snapshot.update, args=(last,))
            sends.start()
            sends.join()

    def settle(self, timeout_s: float) -> None:
        """Until the picture stands that stays, if what is followed has ended."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def greeted(self) -> None:
        """A page shows the view, for the first time or again: all of it from here on."""
        with self._lock:
            self._reset()

    @abstractmethod
    def _reset(self) -> None:
        """Send the page all that there is to see."""

    @abstractmethod
    def look(self) -> None:
        """Read what is new and show it."""

    @abstractmethod
    def end(self) -> str:
        """What stays in a saved notebook, as HTML."""

    def close(self) -> None:
        """Stop watching. What was watched goes on."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        for widget in _all_in(self.box):
            widget.close()


def _all_in(box: widgets.Widget) -> list[widgets.Widget]:
    """A widget after those that lie in it."""
    return [*(w for child in getattr(box, "children", ()) for w in _all_in(child)), box]
