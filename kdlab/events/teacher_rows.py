"""The teachers of a training: one row each, with the spans in which it served."""

from dataclasses import dataclass, field

from kdlab.events.event import Event
from kdlab.events.teachers import TeacherJoined, TeacherLeft, TeacherLost

_SPANS = 60  # of a row; the oldest go first


@dataclass(slots=True)
class TeacherRow:
    name: str
    state: str  # "assigned", "left", "lost", "ended"
    device: str = ""
    t_t: float = 0.0  # samples/s, as it measured
    resends: int = 0  # parts that were sent to another teacher
    since: float = 0.0  # seconds since 1970, of the state
    served_s: float = 0.0  # in all, without the current one of `spans` (begin, end, state)
    spans: list[tuple[float, float | None, str]] = field(default_factory=list)

    def turn(self, state: str, time: float) -> None:
        """Change to a state; the span of the state before ends."""
        if self.spans:
            begin, _, how = self.spans[-1]
            self.spans[-1] = (begin, time, how)
            self.served_s += time - begin if how == "assigned" else 0.0
        self.state, self.since = state, time
        self.spans.append((time, None, state))
        del self.spans[:-_SPANS]


@dataclass(slots=True)
class TeacherRows:
    rows: dict[str, TeacherRow] = field(default_factory=dict)  # by name

    def apply(self, event: Event) -> None:
        match event:
            case TeacherJoined():
                row = self.rows.setdefault(event.name, TeacherRow(event.name, ""))
                row.device, row.t_t = str(event.device or ""), event.t_t
                row.turn("assigned", event.time)
            case TeacherLeft() | TeacherLost() if event.teacher in self.rows:
                row = self.rows[event.teacher]
                row.resends += event.resent
                row.turn("left" if isinstance(event, TeacherLeft) else "lost", event.time)

    def end(self, time: float) -> None:
        """End all serving spans: the training or its session is over."""
        for row in self.serving:
            row.turn("ended", time)

    @property
    def serving(self) -> list[TeacherRow]:
        return [row for row in self.rows.values() if row.state == "assigned"]

    @property
    def served_s(self) -> float:
        """Seconds that all teachers served, in spans that have ended."""
        return sum(row.served_s for row in self.rows.values())
