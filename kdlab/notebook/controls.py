"""Buttons and dials of the live view: the page draws them and sends orders."""

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
    """An order of the page, which is untrusted: a pressed button or set numbers."""

    do: _Name
    name: _Name = ""  # of a teacher, a field or a config
    text: Annotated[str, Meta(max_length=TEXT)] = ""  # typed into the field
    values: Annotated[dict[_Name, _Value], Meta(max_length=50)] = field(
        default_factory=dict
    )


class Controls:
    """Buttons of a page. Each order is checked, executed and answered in the page.

    Args:
        page: shows the buttons.
        actions: allowed orders; a returned text is the answer.
    """

    def __init__(
        self, page: LiveWidget, actions: Mapping[str, Callable[[PageOrder], object]]
    ) -> None:
        self._page, self._actions = page, actions
        self._facts: Mapping[str, object] = {}
        self._reply = (0, "", "")  # number of replies; tone and text of the newest
        self._lock = threading.Lock()  # orders and events come on different threads
        page.ordered = self.execute

    def execute(self, message: object) -> None:
        """Execute an order of the page, and reply with the result or error."""
        try:
            order = from_builtins(PageOrder, message)
            if order.do not in self._actions:
                actions = ", ".join(self._actions)
                raise BadInput(f"{order.do!r} is no order; choose one of {actions}.")
            answer = self._actions[order.do](order)
        except (KdlabError, OSError) as error:  # OSError: writing failed
            self.reply(str(error), "bad")
        else:
            confirmation = f"requested: {order.do} {order.name}".strip()
            self.reply(confirmation if answer is None else str(answer), "plain")

    def reply(self, text: str, tone: str) -> None:
        """Show a reply in the page; it replaces the previous one."""
        with self._lock:
            self._reply = (self._reply[0] + 1, tone, text)
            self._send()

    def show(self, buttons: Sequence[str], **facts: object) -> None:
        """Show buttons of these actions, with dials, teachers and `undo` from `facts`."""
        with self._lock:
            self._facts = {"buttons": buttons, **facts}
            self._send()

    def _send(self) -> None:
        self._page.controls = {**self._facts, "reply": list(self._reply)}


class RunControls(Controls):
    """Controls of a run: each order only appends a change to its queue."""

    def __init__(self, run: "Run", page: LiveWidget) -> None:
        self.run = run
        self._member = ""
        self._tunables: dict[str, Tunable] = {}  # at the start of the training
        self._values: dict[str, float] = {}  # current or requested values
        self._applied: dict[str, float] = {}
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
            raise BadInput("Nothing to undo: no value was set.")
        self.run.set(**values)
        self._values |= values
        return f"requested: {_words(values)}"

    def follow(self, watch: Watch) -> None:
        """Show the controls for the run's present state."""
        if watch.state in ENDED:
            self.show([])
            return
        if watch.now.member not in ("", self._member):
            self._member = watch.now.member
            self._begin()
        for name, value in watch.values.items():
            if self._applied.get(name) != value:
                self._applied[name] = self._values[name] = value
        begin = {tunable.name: tunable.value for tunable in self._tunables.values()}
        undoable = standing_changes(watch.settings_set, begin)
        self._back = undoable[-1] if undoable else {}
        teachers = watch.now.teachers
        self.show(
            ["go on" if watch.paused else "pause", "checkpoint", "stop"]
            + [_BACK] * watch.ruined,
            undo=_words(self._back),
            teachers=[row.name for row in teachers.serving] if teachers.rows else None,
            dials=[dial(item, self._values[name]) for name, item in self._tunables.items()],
        )

    def _begin(self) -> None:
        """Read the tunables of the member that trains now."""
        try:
            tunables = changes.tunables(self.run.folder, at_start=True)
            self._values = {tunable.name: tunable.value for tunable in self.run.tunables()}
        except KdlabError as error:  # another version wrote its spec
            self.reply(str(error), "bad")
            tunables = []
        self._tunables = {t.name: t for t in tunables if t.name in self._values}
        self._applied = {}


def _words(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())


def standing_changes(
    settings_set: Iterable[Mapping[str, float]], begin: Mapping[str, float]
) -> list[dict[str, float]]:
    """Return the values before each change that was not undone, oldest first.

    Args:
        settings_set: values of changes, oldest first. One that restores the values before the
            newest change undoes that.
        begin: all values before any change.
    """
    now, stack = dict(begin), list[dict[str, float]]()
    for values in settings_set:
        before = {name: now[name] for name in values if name in now}
        if before == values:  # several local models report the same change
            continue
        if stack and values == stack[-1]:
            stack.pop()
        else:
            stack.append(before)
        now |= values
    return [change for change in stack if change]


def dial(tunable: Tunable, value: float) -> LiveState:
    """Return a slider for a tunable: ends around its initial value, within its range.

    Values that must be above 0 reach from a hundredth to ten times the initial one, on a log
    scale; others up to four times. The page asks before it sets a number outside the ends.
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
