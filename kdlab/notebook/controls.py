"""Buttons and dials of the monitor: each only appends a change to the run."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from kdlab.errors import KdlabError
from kdlab.notebook.watch import Watch

if TYPE_CHECKING:
    from kdlab.changes.tunable import Tunable
    from kdlab.run.handle.run import Run


def attempt(act: Callable[[], object], say: Callable[[str], None]) -> bool:
    """Whether it was done; what was wrong is said, or nothing."""
    say("")
    try:
        act()
    except KdlabError as error:
        say(str(error))
        return False
    return True


def button(
    label: str, act: Callable[[], object], say: Callable[[str], None], **look: Any
) -> widgets.Button:
    """A button that attempts it."""
    made = widgets.Button(description=label, **look)
    made.on_click(lambda _: attempt(act, say))
    return made


class Controls:
    """Buttons and sliders. Each only appends a change; what is wrong is said by `say`."""

    def __init__(self, run: "Run", say: Callable[[str], None]) -> None:
        self.run, self._say = run, say
        self._paused = False
        self.pause = self._button(
            "pause", lambda: run.go_on() if self._paused else run.pause()
        )
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
        self.sliders.add_class("kd-dials")
        self.box.add_class("kd-controls")
        self._dials: dict[str, Dial] = {}
        self._made_for = ""

    def _button(self, label: str, act: Callable[[], object]) -> widgets.Button:
        return button(label, act, self._say, layout=widgets.Layout(width="auto"))

    def follow(self, watch: Watch) -> None:
        """What the run can do now."""
        self._paused = watch.paused
        self.pause.description = "go on" if watch.paused else "pause"
        names = [t.name for t in watch.now.teachers.serving]
        if list(self.teacher.options) != names:
            # New options choose the first by themselves, and that would be killed.
            kept, known = self.teacher.value, self.teacher.options
            self.teacher.options = names
            first = names[0] if names and not known else None
            self.teacher.value = kept if kept in names else first
        self.pool.layout.display = "" if watch.now.teachers.rows else "none"
        if watch.now.member and watch.now.member != self._made_for:
            self._made_for = watch.now.member
            self._make_sliders()
        for name, value in watch.values.items():
            if name in self._dials:
                self._dials[name].show(value)

    def _make_sliders(self) -> None:
        """With the values of the member that trains now."""
        for dial in self._dials.values():
            for widget in (*dial.children, dial):
                widget.close()
        self._dials.clear()
        try:
            tunables = self.run.knobs()
        except KdlabError as error:  # its spec is of another version
            self._say(str(error))
            tunables = []
        for one in tunables:
            self._dials[one.name] = Dial(one, self._set)
        self.sliders.children = tuple(self._dials.values())

    def _set(self, name: str, value: float) -> bool:
        return attempt(lambda: self.run.set(**{name: value}), self._say)

    def disable(self) -> None:
        """The run has ended."""
        for one in (*self.buttons.children, self.add, self.drain, self.kill):
            one.disabled = True
        for dial in self._dials.values():
            dial.disable()


class Dial(widgets.HBox):
    """A number as a slider, and as a field where it is typed.

    A slider takes the nearest number it can show for one outside its range; the field sends what
    was typed, and goes back where the run refuses it (`send` is false). A slider without an upper
    end reaches four times the value.
    """

    def __init__(self, tunable: "Tunable", send: Callable[[str, float], bool]) -> None:
        self.tunable, self._send = tunable, send
        self._value = tunable.value  # that the run has, or was asked to have
        low = tunable.range.ge if tunable.range.ge is not None else tunable.range.gt
        high = tunable.range.le if tunable.range.le is not None else tunable.range.lt
        reach = 4 * max(abs(tunable.value), 0.25)
        start = 0.0 if low is None else low
        end = min(reach, high) if high is not None else reach
        step = (end - start) / 200
        if tunable.range.gt is not None:  # the limit itself is not allowed
            start += step
        self.slider = widgets.FloatSlider(
            value=min(max(tunable.value, start), end),
            min=start,
            max=end,
            step=step,
            description=tunable.name.rpartition(".")[2],
            readout=False,
            continuous_update=False,
            style={"description_width": "110px"},
        )
        self.field = widgets.FloatText(
            value=tunable.value, step=step, layout=widgets.Layout(width="90px")
        )
        super().__init__([self.slider, self.field])
        self._showing = False
        self.slider.observe(self._changed, names="value")
        self.field.observe(self._changed, names="value")

    def _changed(self, change: dict[str, Any]) -> None:
        if self._showing:  # what somebody else has set
            return
        value = float(change["new"])
        if change["owner"] is self.slider:
            value = float(f"{value:.4g}")
        if self._send(self.tunable.name, value):
            self._value = value
        self._display()

    def show(self, value: float) -> None:
        """What the run has now."""
        if value != self._value:
            self._value = value
            self._display()

    def _display(self) -> None:
        self._showing = True
        try:
            if math.isfinite(self._value):
                self.slider.max = max(self.slider.max, self._value)
                self.slider.min = min(self.slider.min, self._value)
                self.slider.value = self._value
            self.field.value = self._value
        finally:
            self._showing = False

    def disable(self) -> None:
        """The run has ended."""
        self.slider.disabled = self.field.disabled = True
