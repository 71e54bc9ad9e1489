"""Which side a served training waits for, from what both sides measured.

The student knows how long it stood still for want of soft labels. Every answer says how long it
queued at its teacher, waited for its views and was computed; what is left of the time from sending
to arrival went on the wire. A side that cannot do more is where requests gather: before a busy
teacher they queue, before a slow wire they are not there yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SlowSide = Literal["student", "teachers", "views", "wire"]

STARVED = 0.1  # of its time; a student that waits less is the slow side itself
WAITS = ("queued_s", "views_s", "computed_s", "wire_s")  # of answers: figures of the reader
_WHAT: Mapping[SlowSide, str] = {
    "student": "The student is the bottleneck, as it should be",
    "teachers": "Teachers are the bottleneck",
    "views": "Making views is the bottleneck",
    "wire": "The wire is the bottleneck",
}
_DO: Mapping[SlowSide, str] = {
    "student": "",
    "teachers": " One teacher more would help.",
    "views": " Smaller stored images, data.kept: decoded or more cores for teachers would help.",
    "wire": " soft_labels.inputs: reference and replies: half, top_k or sampled send less.",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The slow side; `waits` are shares of the time from asking to the answer."""

    side: SlowSide
    starved: float  # share of its time that the student waited for soft labels
    waits: Mapping[str, float]

    def sentence(self, more: str = "") -> str:
        """For people; `more` is what else is known of the rates."""
        spent = ", ".join(
            f"{self.waits[key]:.0%} {words}"
            for key, words in (
                ("queued_s", "queued at teachers"),
                ("views_s", "waiting for views"),
                ("computed_s", "computed"),
                ("wire_s", "on the wire"),
            )
        )
        is_student = self.side == "student"
        who = "it" if is_student else "the student"
        of_answers = "" if is_student else f" Of an answer's time {spent}."
        return (
            f"{_WHAT[self.side]}: {who} waits {self.starved:.0%} of its time for soft labels{more}."
            f"{of_answers}{_DO[self.side]}"
        )

    def advice(self) -> str:
        """What would help; empty where nothing has to."""
        return _DO[self.side].strip(" .")


def bottleneck_of(
    seconds: float, after: Mapping[str, float], before: Mapping[str, float]
) -> Bottleneck | None:
    """The slow side of a stretch of time; None where nothing was answered in it.

    Nor is anything said where a counter went back: another reader has begun meanwhile.

    Args:
        seconds: that it took.
        after: figures of the reader at its end.
        before: at its begin; {} is the training's begin.
    """
    spent = {key: after.get(key, 0.0) - before.get(key, 0.0) for key in WAITS}
    whole = sum(spent.values())
    starved_s = after.get("starved_s", 0.0) - before.get("starved_s", 0.0)
    if seconds <= 0 or whole <= 0 or min(starved_s, *spent.values()) < 0:
        return None
    starved = min(1.0, starved_s / seconds)
    return Bottleneck(
        side="student" if starved < STARVED else _slow_side(spent),
        starved=starved,
        waits={key: value / whole for key, value in spent.items()},
    )


def of_result(figures: Mapping[str, float]) -> Bottleneck | None:
    """The slow side of a whole training, from its last figures; None without served labels."""
    return bottleneck_of(figures.get("served_s", 0.0), figures, {})


def _slow_side(spent: Mapping[str, float]) -> SlowSide:
    if spent["wire_s"] > 0.5 * sum(spent.values()):
        return "wire"
    return "views" if spent["views_s"] > spent["computed_s"] else "teachers"
