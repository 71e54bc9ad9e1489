"""Buttons and dials of the live view: the page draws them, and says here what was pressed."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from kdlab.changes.tunable import Tunable
from kdlab.codec import from_builtins
from kdlab.config.limits import TEXT
from kdlab.errors import BadInput, KdlabError
from kdlab.experiment.folder import ENDED
from kdlab.notebook.live_state import LiveState
from kdlab.notebook.live_widget import LiveWidget
from kdlab.notebook.watch import Watch
from kdlab.run.handle import changes

if TYPE_CHECKING:
    from kdlab.run.handle.run import Run

_BACK = "back to the last good checkpoint"
_Name = Annotated[str, Meta(max_length=200)]
_Value = Annotated[float, Meta(ge=-1e15, le=1e15)]


@dataclass(frozen=True, slots=True)
class PageOrder:
    """A button that was pressed, or numbers that were set, in a page that may say anything."""

    do: _Name
    name: _Name = ""  # of a teacher, of a field, of what is saved
    text: Annotated[str, Meta(max_length=TEXT)] = ""  # typed into that field
    values: Annotated[dict[_Name, _Value], Meta(max_length=50)] = field(
        default_factory=dict
    )


class Controls:
    """Buttons of a page. Each order is checked, carried out, and answered in the page.

    Args:
        page: shows them.
        actions: what the page may ask for; of one that returns words these are the answer.
    """

    def __init__(
        self, page: LiveWidget, actions: Mapping[str, Callable[[PageOrder], object]]
    ) -> None:
        self._page, self._actions = page, actions
        self._facts: Mapping[str, object] = {}
        self._said = (0, "", "")  # number of answers, tone and words of the newest
        self._lock = threading.Lock()  # orders come in another thread than the run's news
        page.ordered = self.take

    def take(self, message: object) -> None:
        """Carry out one order of the page, or say why not."""
        try:
            order = from_builtins(PageOrder, message)
            if order.do not in self._actions:
                known = ", ".join(self._actions)
                raise BadInput(f"{order.do!r} is nothing that a page can ask for: {known}.")
            answer = self._actions[order.do](order)
        except (KdlabError, OSError) as error:  # OSError: the disk did not take it
            self.say(str(error), "bad")
        else:
            asked = f"asked for: {order.do} {order.name}".strip()
            self.say(asked if answer is None else str(answer), "plain")

    def say(self, text: str, tone: str) -> None:
        """Answer in the page, instead of what was said before."""
        with self._lock:
            self._said = (self._said[0] + 1, tone, text)
            self._send()

    def show(self, buttons: Sequence[str], **facts: object) -> None:
        """Have the buttons of these actions, and dials, teachers and `undo` beside them."""
        with self._lock:
            self._facts = {"buttons": buttons, **facts}
            self._send()

    def _send(self) -> None:
        self._page.controls = {**self._facts, "said": list(self._said)}


class RunControls(Controls):
    """Those of a run: each order only appends a change to it."""

    def __init__(self, run: "Run", page: LiveWidget) -> None:
        self.run = run
        self._made_for = ""
        self._tunables: dict[str, Tunable] = {}  # as the training began
        self._values: dict[str, float] = {}  # as they are, or were asked to be
        self._heard: dict[str, float] = {}
        self._back: dict[str, float] = {}
        super().__init__(page, {
            "pause": lambda _: run.pause(),
            "go on": lambda _: run.go_on(),
            "checkpoint": lambda _: run.checkpoint(),
            "stop": lambda _: run.stop(),
            "add teacher": lambda _: run.add_teacher(),
            "drain": lambda order: run.drain_teacher(order.name),
            "kill": lambda order: run.kill_teacher(order.name),
            "set": lambda order: self._set(order.values),
            "undo": lambda _: self._set(self._back),
            _BACK: lambda _: f"back to the checkpoint of step {run.back():,}",
        })  # fmt: skip

    def _set(self, values: Mapping[str, float]) -> str:
        if not values:
            raise BadInput("Nothing was set, so there is nothing to go back to.")
        self.run.set(**values)
        self._values |= values
        return f"asked for: {_words(values)}"

    def follow(self, watch: Watch) -> None:
        """Show what the run can do now."""
        if watch.state in ENDED:
            self.show([])
            return
        if watch.now.member not in ("", self._made_for):
            self._made_for = watch.now.member
            self._begin()
        for name, value in watch.values.items():
            if self._heard.get(name) != value:
                self._heard[name] = self._values[name] = value
        begin = {one.name: one.value for one in self._tunables.values()}
        stands = standing(watch.settings_set, begin)
        self._back = stands[-1] if stands else {}
        teachers = watch.now.teachers
        self.show(
            ["go on" if watch.paused else "pause", "checkpoint", "stop"]
            + [_BACK] * watch.ruined,
            undo=_words(self._back),
            teachers=[row.name for row in teachers.serving] if teachers.rows else None,
            dials=[dial(one, self._values[name]) for name, one in self._tunables.items()],
        )

    def _begin(self) -> None:
        """With the numbers of the member that trains now."""
        try:
            found = changes.tunables(self.run.folder, at_start=True)
            self._values = {one.name: one.value for one in self.run.knobs()}
        except KdlabError as error:  # its spec is of another version
            self.say(str(error), "bad")
            found = []
        self._tunables = {one.name: one for one in found if one.name in self._values}
        self._heard = {}


def _words(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())


def standing(
    settings_set: Iterable[Mapping[str, float]], begin: Mapping[str, float]
) -> list[dict[str, float]]:
    """The numbers before each change that still stands, oldest first.

    Args:
        settings_set: numbers that were set, oldest first. One that goes back to what was before
            the newest change takes that away.
        begin: all numbers before any was set.
    """
    now, found = dict(begin), list[dict[str, float]]()
    for values in settings_set:
        before = {name: now[name] for name in values if name in now}
        if before == values:  # each of several local models says it
            continue
        if found and values == found[-1]:
            found.pop()
        else:
            found.append(before)
        now |= values
    return [one for one in found if one]


def dial(tunable: Tunable, value: float) -> LiveState:
    """A number as a slider: its ends lie around what it began with, within its range.

    What must be above 0 reaches from a hundredth to ten times of it, by decades; what need not,
    four times as far. The page asks before it sets a number beyond these ends.
    """
    limits, begin = tunable.range, tunable.value
    least = limits.ge if limits.ge is not None else limits.gt
    most = limits.le if limits.le is not None else limits.lt
    reach = 4 * max(abs(begin), 0.25)
    log = limits.gt is not None and limits.gt >= 0 and begin > 0
    low, high = (begin / 100, 10 * begin) if log else (min(0.0, 4 * begin), reach)
    if least is not None:
        low = max(least, low) if log else least
    high = high if most is None else min(high, most)
    if limits.gt is not None and low == limits.gt:  # the limit itself is not allowed
        low += (high - low) / 200
    ends = {"least": least, "most": most, "low": low, "high": high}
    return {"name": tunable.name, "value": value, "log": log and high >= 10 * low} | ends
