"""What a run's events say of each of its trainings: curves over time and over samples, cost."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kdlab.events.blockwise import WholeStudentStarted
from kdlab.events.ensemble import ErrorsMeasured
from kdlab.events.event import Event
from kdlab.events.runs import MemberDone, MemberStarted, RunStarted
from kdlab.events.teachers import TeacherJoined, TeacherLeft, TeacherLost
from kdlab.events.training import EpochDone, Resumed, StepLogged

CurvePoints = list[tuple[float, float]]
_MAX = 400  # points of a curve that is only to be looked at


@dataclass(frozen=True, slots=True)
class _Seen:
    title: str
    step: int  # or round, as its event says; to drop what a resume undid
    seconds: float
    count: float
    value: float


@dataclass(slots=True)
class Progression:
    """One training, as its events tell it. The time between two sessions does not count.

    over_time: points of each curve by its title, over seconds since the training began (of
        local models: of machines side by side).
    over_count: the same over samples the student has seen, or iterations of local models.
    teacher_s: seconds of all its teachers together, while they were in the pool.
    """

    member: str
    source: str = ""
    began: float = 0.0
    over_time: dict[str, CurvePoints] = field(default_factory=dict)
    over_count: dict[str, CurvePoints] = field(default_factory=dict)
    counted: str = "samples"
    wall_s: float = 0.0  # seconds from its begin to its end, or as far as it came
    teacher_s: float = 0.0
    _seen: list[_Seen] = field(default_factory=list)
    _samples: float = 0.0
    _before: float = 0.0  # samples of an earlier part of the training, such as blocks
    _joined: dict[str, float] = field(default_factory=dict)

    def see(self, event: Event, now: float) -> None:
        """One event; `now` is its time without what passed between two sessions."""
        self.wall_s = now - self.began
        at = now - self.began
        match event:
            case TeacherJoined():
                self._joined[event.name] = now
            case TeacherLeft() | TeacherLost():
                self._gone(event.teacher, now)
            case MemberDone():
                self.pause(now)
            case Resumed():
                self._undo(event.epoch - 1 if self.counted == "iterations" else event.step)
            case WholeStudentStarted():  # it counts from 0 again
                self._before += self._samples
                self._samples = 0.0
            case StepLogged():
                self._samples = float(event.samples_seen)
                title = "loss" if event.block_losses is None else "loss of the blocks"
                self._point(title, event.step, at, event.loss)
            case EpochDone():
                self._point("top-1 on validation, %", event.step, at, event.validation_top1)
            case ErrorsMeasured():
                self.counted, self._samples = "iterations", float(event.iterations)
                at = event.parallel_s
                self._point("test error of _G, %", event.round, at, event.global_)
                self._point("test error of _L, %", event.round, at, event.chosen)

    def _point(self, title: str, step: int, at: float, value: float | None) -> None:
        if value is not None:
            count = self._before + self._samples
            self._seen.append(_Seen(title, step, at, count, float(value)))

    def pause(self, now: float) -> None:
        """The session ends, and with it what its teachers cost."""
        for name in list(self._joined):
            self._gone(name, now)

    def _gone(self, teacher: str, now: float) -> None:
        since = self._joined.pop(teacher, None)
        if since is not None:
            self.teacher_s += now - since

    def _undo(self, step: int) -> None:
        """Steps after the newest checkpoint of a run that was killed are taken again."""
        parts = [one for one in self._seen if one.count <= self._before]
        own = [one for one in self._seen if one.count > self._before and one.step <= step]
        self._seen = parts + own

    def draw(self) -> None:
        """Fill the curves, thinned to what a picture can show."""
        for title in dict.fromkeys(one.title for one in self._seen):
            own = [one for one in self._seen if one.title == title]
            self.over_time[title] = thinned([(one.seconds, one.value) for one in own])
            self.over_count[title] = thinned([(one.count, one.value) for one in own])


def progressions(events: Iterable[Event]) -> dict[str, Progression]:
    """Each training of a run by its name."""
    found: dict[str, Progression] = {}
    newest = lost = 0.0  # time of the newest event; time between sessions so far
    for event in events:
        if isinstance(event, RunStarted) and newest:
            for own in found.values():
                own.pause(newest - lost)
            lost += event.time - newest
        newest = event.time
        member = event.member or ""
        if isinstance(event, MemberStarted):
            if member not in found:
                found[member] = Progression(member, event.source, newest - lost)
        elif member in found:
            found[member].see(event, newest - lost)
    for own in found.values():
        own.draw()
    return found


def thinned(points: CurvePoints, most: int = _MAX) -> CurvePoints:
    """Neighbours become their mean until there are few enough; the last one stays."""
    size = -(-len(points) // most)
    if size <= 1:
        return points
    groups = [points[k : k + size] for k in range(0, len(points), size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [*means[:-1], points[-1]]
