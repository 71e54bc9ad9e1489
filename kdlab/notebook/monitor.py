"""The live view of one run: reads its events and requests changes.

It is outside the training process: a thread of the kernel reads `events.jsonl` a few times a
second, and buttons append changes (kdlab/run/handle/changes.py). So an interrupted or restarted
kernel, or a closed browser, does not affect the run.
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
_PATIENCE_S = 2.0  # until a view must announce itself
_FACTS_S = 0.5  # between updates of facts
_PICTURE_S = 2.0  # between updates of the picture, where there is no view


class Monitor(LiveView):
    """View of `run.live()`, updated `hz` times a second; `auto` uses SVG without a widget view."""

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
        self.still = widgets.HTML()  # picture, where there is no view
        self.controls = RunControls(run, self.page)
        self.box.children = (self.page, self.still)
        self.update()

    def show(self) -> Self:
        self._shown_at = self._now()
        return super().show()

    def __repr__(self) -> str:
        with self._lock:
            return f"Monitor({self.run.id}: {self.watch.state}, step {self.watch.now.step})"

    def on_hello(self) -> None:
        self._hello.set()
        super().on_hello()

    def _reset(self) -> None:
        order = list(PANELS)
        curves = sorted(self.watch.curves.items(), key=lambda item: order.index(item[0][0]))
        self._chapter = self.watch.chapter
        self.page.reset({(*key, ""): curve for key, curve in curves})

    def _follow(self) -> None:
        try:
            super()._follow()
        except Exception as error:  # any: the page must report it
            message = f"The monitor failed; the run continues: {error!r}"
            self.controls.reply(message, "bad")
            if self.still.value:  # the page is hidden
                self.still.value += shown(alerts=[("bad", message)])
            raise

    def update(self) -> None:
        with self._lock:
            for event in self._read():
                self.watch.apply(event)
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
            self.watch.state = self.run.state  # a lost run has no final event
            self._picture_at = 0.0
            self._facts(self._now())
            snapshot = picture.static(self.watch, self.run.id)
        return snapshot
