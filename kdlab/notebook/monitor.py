"""The live view of one run: watches it from its events, and changes it.

Nothing here is in the training process. A thread of the kernel reads `events.jsonl` a few
times a second; buttons and dials append changes (kdlab/run/handle/changes.py). So an interrupted
or restarted kernel, or a closed browser, never touches the run.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Self

import ipywidgets as widgets

from kdlab.events.log import EventReader
from kdlab.events.run_state import PANELS
from kdlab.notebook import live_state, picture
from kdlab.notebook.controls import RunControls
from kdlab.notebook.live_view import LiveView
from kdlab.notebook.watch import Watch
from kdlab.report.page import shown

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

Renderer = Literal["auto", "canvas", "svg"]
_PATIENCE_S = 2.0  # for a view to say hello
_FACTS_S = 0.5  # between updates of what is no curve
_PICTURE_S = 2.0  # and of the picture, where no view is


class Monitor(LiveView):
    """What `run.live()` shows, `hz` times a second; `auto` takes SVG where no view answers."""

    def __init__(
        self,
        run: "Run",
        renderer: Renderer = "auto",
        hz: float = 8.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(run, 1 / hz, f'kdlab.attach("{run.id}").live()')
        self.run, self.renderer, self._now = run, renderer, now
        self.watch = Watch()
        self._read = EventReader(run.folder.events)
        self._hello = threading.Event()
        self._shown_at = now()
        self._facts_at = self._picture_at = 0.0
        self._chapter = self.watch.chapter
        self.still = widgets.HTML()  # where no view is
        self.controls = RunControls(run, self.page)
        self.box.children = (self.page, self.still)
        self.look()

    def show(self) -> Self:
        self._shown_at = self._now()
        return super().show()

    def __repr__(self) -> str:
        with self._lock:
            return f"Monitor({self.run.id}: {self.watch.state}, step {self.watch.now.step})"

    def greeted(self) -> None:
        self._hello.set()
        super().greeted()

    def _reset(self) -> None:
        order = list(PANELS)
        curves = sorted(self.watch.curves.items(), key=lambda one: order.index(one[0][0]))
        self._chapter = self.watch.chapter
        self.page.reset({(*key, ""): curve for key, curve in curves})

    def _follow(self) -> None:
        try:
            super()._follow()
        except Exception as error:  # of whatever kind: it is the page that must say so
            words = f"The monitor stopped, the run did not: {error!r}"
            self.controls.say(words, "bad")
            if self.still.value:  # the page is not seen
                self.still.value += shown(said=[("bad", words)])
            raise

    def look(self) -> None:
        with self._lock:
            for event in self._read():
                self.watch.see(event)
            news = [
                ((panel, name, ""), x, y) for panel, name, x, y in self.watch.take_news()
            ]
            now = self._now()
            if now - self._facts_at >= _FACTS_S:
                self._facts_at = now
                self._facts(now)
            same = self._chapter == self.watch.chapter
            if self.renderer != "svg" and not (same and self.page.add(news)):
                self._reset()

    def _facts(self, now: float) -> None:
        if self.watch.images is not None and not self.page.strip:
            self.page.strip = live_state.strip(self.watch)
        self.page.state = live_state.of_run(self.watch, self.run.id)
        self.controls.follow(self.watch)
        late = now - self._shown_at > _PATIENCE_S and not self._hello.is_set()
        by_svg = self.renderer == "svg" or (self.renderer == "auto" and late)
        self.page.layout.display = "none" if by_svg else ""
        if not by_svg:
            self.still.value = ""
        elif now - self._picture_at >= _PICTURE_S:
            self._picture_at = now
            self.still.value = picture.static(self.watch, self.run.id)

    def end(self) -> str:
        with self._lock:
            self.watch.state = self.run.state  # a lost one has said nothing
            self._picture_at = 0.0
            self._facts(self._now())
            still = picture.static(self.watch, self.run.id)
        return still
