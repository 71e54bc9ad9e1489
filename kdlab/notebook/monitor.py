"""The live monitor: watches a run from its events, and steers it by orders.

Nothing here is in the training process. A thread of the kernel reads `events.jsonl` a few
times a second; buttons and sliders append orders (kdlab/run/handle/control.py). So an interrupted
or restarted kernel, or a closed browser, never touches the run.
"""

import threading
import time
from typing import TYPE_CHECKING, Literal, Self

import ipywidgets as widgets

from kdlab.events.log import EventReader
from kdlab.notebook import picture
from kdlab.notebook.controls import Controls
from kdlab.notebook.curves import CurvesWidget
from kdlab.notebook.live_view import LiveView
from kdlab.notebook.watch import Watch
from kdlab.report.page import table

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

Renderer = Literal["auto", "canvas", "svg"]
_PATIENCE_S = 2.0  # for a view of the canvas to say hello
_TABLES_S = 1.0  # between updates of tables and of the SVG


class Monitor(LiveView):
    """What `run.live()` shows, `hz` times a second; `auto` takes SVG where there is no canvas."""

    def __init__(self, run: "Run", renderer: Renderer = "auto", hz: float = 8.0) -> None:
        super().__init__(run, 1 / hz)
        self.run, self.renderer = run, renderer
        self.watch = Watch()
        self._read = EventReader(run.folder.events)
        self._hello = threading.Event()
        self._lock = threading.Lock()  # the watch is read by callbacks of any thread
        self._shown_at = time.monotonic()
        self._tables_at = 0.0
        self.heading = widgets.HTML()
        self.curves = CurvesWidget(
            self.watch, f'kdlab.attach("{run.id}").live()', self._greeted
        )
        self.svg = widgets.HTML()
        self.devices = widgets.HTML()  # of a pipeline
        self.teachers, self.ticker = widgets.HTML(), widgets.HTML()
        self.message = widgets.HTML()
        self.controls = Controls(run, self._say)
        shown = [self.heading, self.curves, self.svg, self.devices, self.teachers]
        self.box = widgets.VBox([*shown, self.controls.box, self.message, self.ticker])
        self.look()

    def show(self) -> Self:
        self._shown_at = time.monotonic()
        return super().show()

    def __repr__(self) -> str:
        with self._lock:
            return f"Monitor({self.run.id}: {self.watch.state}, step {self.watch.step})"

    def _greeted(self) -> None:
        """A page shows the canvas, for the first time or again: all of it from here on."""
        self._hello.set()
        with self._lock:
            self.curves.reset()

    def _follow(self) -> None:
        try:
            super()._follow()
        except Exception as error:  # of whatever kind: it is the page that must say so
            self._say(f"The monitor stopped, the run did not: {error!r}")
            raise

    def look(self) -> None:
        with self._lock:
            for event in self._read():
                self.watch.see(event)
            news = self.watch.take_news()
            if self.renderer != "svg":
                self.curves.add(news)
            now = time.monotonic()
            if now - self._tables_at < _TABLES_S:
                return
            self._tables_at = now
            self._tables(now)

    def _tables(self, now: float) -> None:
        self.heading.value = f"<b>{picture.heading(self.watch)}</b>"
        self.devices.value = picture.devices(self.watch)
        self.teachers.value = picture.teachers(self.watch)
        self.ticker.value = picture.ticker(self.watch)
        self.controls.follow(self.watch)
        late = now - self._shown_at > _PATIENCE_S and not self._hello.is_set()
        by_svg = self.renderer == "svg" or (self.renderer == "auto" and late)
        self.svg.value = picture.svg(self.watch) if by_svg else ""
        self.curves.layout.display = "none" if by_svg else ""

    def end(self) -> str:
        with self._lock:
            self.watch.state = self.run.state  # a lost one has said nothing
            self._tables(time.monotonic())
            still = picture.static(self.watch)
        self.controls.disable()
        return still

    def _say(self, text: str) -> None:
        self.message.value = table(("",), [(text,)]) if text else ""
