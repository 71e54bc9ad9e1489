"""Find the bottleneck of a served training from measured waits.

The student measures how long it waits for soft labels. Every answer says how long it queued at
its teacher, waited for its views and was computed; the rest of the time from sending to arrival
is the wire's. Requests gather at the slow side: they queue before a busy teacher, and have not
arrived yet before a slow wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SlowSide = Literal["student", "teachers", "views", "wire"]

STARVED = 0.1  # share of time; a student that waits less is the bottleneck itself
WAITS = ("queued_s", "views_s", "computed_s", "wire_s")  # seconds of answers, by the reader
_WHAT: Mapping[SlowSide, str] = {
    "student": "The student is the bottleneck, as it should be",
    "teachers": "Teachers are the bottleneck",
    "views": "Making views is the bottleneck",
    "wire": "The wire is the bottleneck",
}
_DO: Mapping[SlowSide, str] = {
    "student": "",
    "teachers": " One more teacher would help.",
    "views": " Smaller stored images, data.kept: decoded or more cores for teachers would help.",
    "wire": " soft_labels.inputs: reference and replies: half, top_k or sampled send less.",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The slow side; `waits` are shares of the time from request to answer."""

    side: SlowSide
    starved: float  # share of time that the student waits for soft labels
    waits: Mapping[str, float]

    def sentence(self, more: str = "") -> str:
        """Return the bottleneck as a sentence; `more` is a text on the rates."""
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
        """Return what would help; empty where the student is the bottleneck."""
        return _DO[self.side].strip(" .")


def bottleneck_of(
    seconds: float, after: Mapping[str, float], before: Mapping[str, float]
) -> Bottleneck | None:
    """Return the slow side of a period; None where it has no answers.

    Also None where a counter went back: another reader has started meanwhile.

    Args:
        seconds: length of the period.
        after: the reader's counters at the end.
        before: the reader's counters at the start; {} is the start of the training.
    """
    spent = {key: after.get(key, 0.0) - before.get(key, 0.0) for key in WAITS}
    total = sum(spent.values())
    starved_s = after.get("starved_s", 0.0) - before.get("starved_s", 0.0)
    if seconds <= 0 or total <= 0 or min(starved_s, *spent.values()) < 0:
        return None
    starved = min(1.0, starved_s / seconds)
    return Bottleneck(
        side="student" if starved < STARVED else _slow_side(spent),
        starved=starved,
        waits={key: value / total for key, value in spent.items()},
    )


def of_result(figures: Mapping[str, float]) -> Bottleneck | None:
    """Return the slow side of a training from its last counters; None without served labels."""
    return bottleneck_of(figures.get("served_s", 0.0), figures, {})


def _slow_side(spent: Mapping[str, float]) -> SlowSide:
    if spent["wire_s"] > 0.5 * sum(spent.values()):
        return "wire"
    return "views" if spent["views_s"] > spent["computed_s"] else "teachers"
