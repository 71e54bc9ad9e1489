"""Base of live views in notebooks: widgets, and the thread that updates them."""

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
    """A view in a notebook cell; `again` is code that shows it again. Closing it changes no run."""

    def __init__(self, watched: Viewed, every_s: float, again: str) -> None:
        self._watched, self._every_s = watched, every_s
        self.page = LiveWidget(watched.id, again, self.on_hello)
        self.box = widgets.VBox([self.page])
        self._closing = threading.Event()
        self._lock = threading.Lock()  # callbacks may come on any thread
        self._snapshot: DisplayHandle | None = None
        # A thread without its own context acts for the kernel's latest request. ipykernel 7.4
        # sends a page's replies to the subshell of that request, which for a reloaded page ends
        # a moment later: it then refuses all messages of the page ("Unknown subshell_id"), so
        # the page requests no curves and its buttons do nothing.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._follow,), name="kdlab-live", daemon=True
        )

    def show(self) -> Self:
        """Display the view, and a snapshot that stays in the saved notebook."""
        if not in_marimo():  # marimo shows the cell's value, from _display_
            display(self.box)
            self._snapshot = display(HTML(""), display_id=True)
        self.follow()
        return self

    def _display_(self) -> object:
        """Widget for marimo, which has no ipywidgets: the view with its controls."""
        return self.page

    def follow(self) -> None:
        """Start watching, without display."""
        self._thread.start()

    def _ipython_display_(self) -> None:  # noqa: B027 - nothing to do
        """Nothing: `show` has displayed it."""

    def _follow(self) -> None:
        while not self._closing.wait(self._every_s):
            ended = self._watched.state in ENDED  # before the update: no event is missed
            self.update()
            if ended:
                break
        snapshot = self.end()
        if self._snapshot is not None:
            # live.js hides it where the live view is on the page.
            name = html.escape(self._watched.id)
            content = HTML(f'<div class="kd-still" data-of="{name}">{snapshot}</div>')
            # Sent for the current cell, by a thread without a context: nbclient, which
            # executes notebooks without a page, drops output of other cells.
            sender = threading.Thread(target=self._snapshot.update, args=(content,))
            sender.start()
            sender.join()

    def wait_for_snapshot(self, timeout_s: float) -> None:
        """Wait until the final snapshot is displayed, at most `timeout_s` seconds."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def on_hello(self) -> None:
        """Send everything to a page that shows the view, for the first time or again."""
        with self._lock:
            self._reset()

    @abstractmethod
    def _reset(self) -> None:
        """Send the page all curves."""

    @abstractmethod
    def update(self) -> None:
        """Read new events and show them."""

    @abstractmethod
    def end(self) -> str:
        """Show the final state; return the snapshot as HTML."""

    def close(self) -> None:
        """Stop watching; the run or sweep continues."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        for widget in _widgets(self.box):
            widget.close()


def _widgets(box: widgets.Widget) -> list[widgets.Widget]:
    """Return a widget after its children."""
    return [*(w for child in getattr(box, "children", ()) for w in _widgets(child)), box]
