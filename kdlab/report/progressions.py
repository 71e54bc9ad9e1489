"""What a run's events say of each of its trainings: curves over time and over samples, cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Points = list[tuple[float, float]]
_MOST = 400  # points of a curve that is only to be looked at

# What is drawn: title, and the key of the events that have it.
_DRAWN = {
    "step": {"loss": "loss"},
    "epoch_done": {"top-1 on validation, %": "validation_top1"},
    "look": {"test error of _G, %": "global_", "test error of _L, %": "chosen"},
}


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
    wall_s: seconds from its begin to its end, or as far as it came.
    teacher_s: seconds of all its teachers together, while they were in the pool.
    """

    member: str
    source: str = ""
    began: float = 0.0
    over_time: dict[str, Points] = field(default_factory=dict)
    over_count: dict[str, Points] = field(default_factory=dict)
    counted: str = "samples"
    wall_s: float = 0.0
    teacher_s: float = 0.0
    _seen: list[_Seen] = field(default_factory=list)
    _samples: float = 0.0
    _before: float = 0.0  # samples of an earlier part of the training, such as blocks
    _joined: dict[str, float] = field(default_factory=dict)

    def see(self, event: Mapping[str, Any], now: float) -> None:
        """One event; `now` is its time without what passed between two sessions."""
        kind = str(event["event"])
        self.wall_s = now - self.began
        match kind:
            case "teacher_joined":
                self._joined[str(event["name"])] = now
            case "teacher_left" | "teacher_lost":
                self._gone(str(event["teacher"]), now)
            case "member_done":
                self.pause(now)
            case "resumed":
                by_round = self.counted == "iterations"
                self._undo(int(event["epoch"]) - 1 if by_round else int(event["step"]))
            case "whole_student":  # it counts from 0 again
                self._before += self._samples
                self._samples = 0.0
        self._samples = float(event.get("samples_seen") or self._samples)
        if kind == "look":
            self.counted, self._samples = "iterations", float(event["iterations"])
        step = int(event["round"] if kind == "look" else event.get("step") or 0)
        for title, key in _DRAWN.get(kind, {}).items():
            value = event.get(key)
            if value is None:
                continue
            shown = "loss of the blocks" if "block_losses" in event else title
            at = float(event.get("parallel_s", now - self.began))
            count = self._before + self._samples
            self._seen.append(_Seen(shown, step, at, count, float(value)))

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


def progressions(events: Iterable[Mapping[str, Any]]) -> dict[str, Progression]:
    """Each training of a run by its name."""
    found: dict[str, Progression] = {}
    newest = lost = 0.0  # time of the newest event; time between sessions so far
    for event in events:
        if event["event"] == "run_started" and newest:
            for own in found.values():
                own.pause(newest - lost)
            lost += float(event["time"]) - newest
        newest = float(event["time"])
        member = str(event.get("member", ""))
        if event["event"] == "member_started":
            if member not in found:
                source = str(event.get("source", ""))
                found[member] = Progression(member, source, newest - lost)
        elif member in found:
            found[member].see(event, newest - lost)
    for own in found.values():
        own.draw()
    return found


def thinned(points: Points, most: int = _MOST) -> Points:
    """Neighbours become their mean until there are few enough; the last one stays."""
    size = -(-len(points) // most)
    if size <= 1:
        return points
    groups = [points[k : k + size] for k in range(0, len(points), size)]
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return [*means[:-1], points[-1]]
