"""The live monitor: watches a run from its events, and steers it by orders.

Nothing here is in the training process. A thread of the kernel reads `events.jsonl` a few
times a second; buttons and sliders append orders (kdlab/run/control.py). So an interrupted
or restarted kernel, or a closed browser, never touches the run.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import ipywidgets as widgets
from IPython.display import HTML, display

from kdlab.errors import KdlabError
from kdlab.events.log import EventReader
from kdlab.experiment.folder import ENDED
from kdlab.notebook import picture
from kdlab.notebook.curves import CurvesWidget
from kdlab.notebook.follower import follower
from kdlab.notebook.watch import Watch
from kdlab.report.page import table

if TYPE_CHECKING:
    from kdlab.run.control import Knob
    from kdlab.run.handle import Run

Renderer = Literal["auto", "canvas", "svg"]
_PATIENCE_S = 2.0  # for a view of the canvas to say hello
_TABLES_S = 1.0  # between updates of tables and of the SVG


class Monitor:
    """What `run.live()` shows.

    Args:
        run: to be watched.
        renderer: `auto` draws on a canvas, and as SVG where the page cannot show that.
        hz: updates a second.
    """

    def __init__(self, run: "Run", renderer: Renderer = "auto", hz: float = 8.0) -> None:
        self.run, self.renderer, self.hz = run, renderer, hz
        self.watch = Watch()
        self._read = EventReader(run.folder.events)
        self._hello = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()  # the watch is read by callbacks of any thread
        self._shown_at = time.monotonic()
        self._tables_at = 0.0
        self._snapshot: Any = None
        self.heading = widgets.HTML()
        self.curves = CurvesWidget(self.watch, self._said_hello)
        self.svg = widgets.HTML()
        self.devices = widgets.HTML()  # of a pipeline
        self.teachers, self.ticker = widgets.HTML(), widgets.HTML()
        self.message = widgets.HTML()
        self.controls = Controls(run, self._say)
        self.box = widgets.VBox(
            [
                self.heading,
                self.curves,
                self.svg,
                self.devices,
                self.teachers,
                self.controls.box,
                self.message,
                self.ticker,
            ]
        )
        self._look()
        self._thread = follower(self._follow, "kdlab-live")

    # Showing

    def show(self) -> "Monitor":
        """Display it, and a picture that stays when the notebook is saved."""
        display(self.box)
        self._snapshot = display(HTML(""), display_id=True)
        self._shown_at = time.monotonic()
        self.follow()
        return self

    def follow(self) -> None:
        """Watch without showing anything."""
        self._thread.start()

    def _ipython_display_(self) -> None:
        """Shown already, by `show`."""

    def __repr__(self) -> str:
        with self._lock:
            return f"Monitor({self.run.id}: {self.watch.state}, step {self.watch.step})"

    def close(self) -> None:
        """Stop watching. The run goes on."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        for widget in (*self.controls.parts(), *self.box.children, self.box):
            widget.close()

    # Following

    def _said_hello(self) -> None:
        """A page shows the canvas, for the first time or again: all of it from here on."""
        self._hello.set()
        with self._lock:
            self.curves.reset()

    def _follow(self) -> None:
        try:
            while not self._closing.wait(1 / self.hz):
                ended = self.run.state in ENDED  # looked at first: nothing is missed
                self._look()
                if ended:
                    break
            self._end()
        except Exception as error:  # of whatever kind: it is the page that must say so
            self._say(f"The monitor stopped, the run did not: {error!r}")
            raise

    def _look(self) -> None:
        """Read what is new and show it."""
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

    def _end(self) -> None:
        with self._lock:
            self.watch.state = self.run.state  # a lost one has said nothing
            self._tables(time.monotonic())
            still = picture.static(self.watch)
        self.controls.disable()
        if self._snapshot is not None:
            self._snapshot.update(HTML(still))

    def _say(self, text: str) -> None:
        self.message.value = table(("",), [(text,)]) if text else ""


class Controls:
    """Buttons and sliders. Each only appends an order; errors are shown where they happen.

    Args:
        run: to be steered.
        say: shows what was wrong, or nothing.
    """

    def __init__(self, run: "Run", say: Callable[[str], None]) -> None:
        self.run, self._say = run, say
        self._paused = False
        self.pause = self._button("pause", self._pause_or_go_on)
        self.checkpoint = self._button("checkpoint", run.checkpoint)
        self.stop = self._button("stop", run.stop)
        self.add = self._button("add teacher", run.add_teacher)
        self.teacher = widgets.Dropdown(options=[], layout=widgets.Layout(width="140px"))
        self.drain = self._button("drain", lambda: run.drain_teacher(self.teacher.value))
        self.kill = self._button("kill", lambda: run.kill_teacher(self.teacher.value))
        self.pool = widgets.HBox([self.add, self.teacher, self.drain, self.kill])
        self.sliders = widgets.VBox([])
        self.buttons = widgets.HBox([self.pause, self.checkpoint, self.stop])
        self.box = widgets.VBox([self.buttons, self.pool, self.sliders])
        self._knobs: dict[str, Any] = {}
        self._made_for, self._quiet = "", False

    def parts(self) -> list[Any]:
        """All, to be closed."""
        own = [*self.buttons.children, *self.pool.children, *self.sliders.children]
        return [*own, self.buttons, self.pool, self.sliders]

    def _button(self, label: str, act: Callable[[], Any]) -> widgets.Button:
        button = widgets.Button(description=label, layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: self._try(act))
        return button

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except KdlabError as error:
            self._say(str(error))
        else:
            self._say("")

    def _pause_or_go_on(self) -> None:
        self.run.go_on() if self._paused else self.run.pause()

    def follow(self, watch: Watch) -> None:
        """What the run can do now."""
        self._paused = watch.paused
        self.pause.description = "go on" if watch.paused else "pause"
        names = [t.name for t in watch.teachers.values() if t.state == "assigned"]
        if list(self.teacher.options) != names:
            # New options choose the first by themselves, and that would be killed.
            kept, known = self.teacher.value, self.teacher.options
            self.teacher.options = names
            first = names[0] if names and not known else None
            self.teacher.value = kept if kept in names else first
        self.pool.layout.display = "" if watch.teachers else "none"
        if watch.member and watch.member != self._made_for:
            self._made_for = watch.member
            self._make_sliders()
        self._quiet = True
        for name, value in watch.values.items():
            if name in self._knobs and self._knobs[name].value != value:
                self._knobs[name].value = value
        self._quiet = False

    def _make_sliders(self) -> None:
        """With the values of the member that trains now."""
        for slider in self._knobs.values():
            slider.close()
        self._knobs.clear()
        try:
            knobs = self.run.knobs()
        except KdlabError as error:  # its spec is of another version
            self._say(str(error))
            knobs = []
        for knob in knobs:
            slider = _slider(knob)
            slider.observe(partial(self._moved, knob.name), names="value")
            self._knobs[knob.name] = slider
        self.sliders.children = tuple(self._knobs.values())

    def _moved(self, name: str, change: dict[str, Any]) -> None:
        if self._quiet:  # it only shows what somebody else has set
            return
        self._try(lambda: self.run.set(**{name: change["new"]}))

    def disable(self) -> None:
        """The run has ended."""
        for one in (
            self.pause,
            self.checkpoint,
            self.stop,
            self.add,
            self.drain,
            self.kill,
        ):
            one.disabled = True
        for slider in self._knobs.values():
            slider.disabled = True


def _slider(knob: "Knob") -> Any:
    """Within the spec's range; where that has no end, to four times the value."""
    low = knob.range.ge if knob.range.ge is not None else knob.range.gt
    high = knob.range.le if knob.range.le is not None else knob.range.lt
    reach = 4 * max(abs(knob.value), 0.25)
    start = 0.0 if low is None else low
    end = min(reach, high) if high is not None else reach
    step = (end - start) / 200
    if knob.range.gt is not None:  # the limit itself is not allowed
        start += step
    return widgets.FloatSlider(
        value=min(max(knob.value, start), end),
        min=start,
        max=end,
        step=step,
        description=knob.name.rpartition(".")[2],
        readout_format=".4g",
        continuous_update=False,
        style={"description_width": "110px"},
    )
