"""Hybrid scheduling of one student: Algorithm 1 of EDL-Dist (section 3.2).

Teachers fill a buffer of soft labels, training steps drain it.

    1: schedule n Teacher resources to the Student resource    -> start()
    2: while knowledge distillation is not terminated do       -> one on_volume() each
    3:   volume = get_volume(unused soft labels)               -> Level
    4:   if volume > ut then stop sending                      -> hold_inputs
    7:   if volume == 0 then schedule an additional Teacher    -> request_teacher
    10:  if volume < lt then continue sending                  -> send_inputs

Two deviations, both in docs/edl_dist.md:
* The paper counts labels that have arrived. Requests under way become labels too, so
  here `volume` counts both; else the buffer passes ut by all that is in flight.
* Line 7 has two policies. `paper` is the printed line: every look at an empty buffer
  asks for one more teacher. Since the buffer is empty until the first answers return,
  this ends far above the n that suffices. `guarded` asks only when the student starved
  after the last change had time to show, and releases a teacher when sending has been
  held for long (the paper has no release).
"""

from dataclasses import dataclass, replace
from typing import Literal

Instruction = Literal["send_inputs", "hold_inputs", "request_teacher", "release_teacher"]
Policy = Literal["paper", "guarded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What the monitoring task sees (line 3). All counts in samples."""

    time: float  # seconds, any origin, never decreasing
    unused: int  # soft labels that arrived and were not trained on yet
    in_flight: int  # sent to teachers, not answered yet
    teachers: int  # assigned to this student and alive
    student_waits: bool  # the student is idle for want of soft labels

    @property
    def volume(self) -> int:
        return self.unused + self.in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    lt: int  # samples: lower threshold
    ut: int  # samples: upper threshold, bounds unused + in flight
    batch: int = 1  # samples sent at once: sending one more must not pass ut
    policy: Policy = "guarded"
    settle_s: float = 3.0  # guarded: time a change of teachers takes to show
    window_s: float = 10.0  # guarded: a release needs a look this long
    sending: bool = True
    request_open: bool = False  # a teacher was asked for and has not joined yet
    changed_at: float | None = None  # last change of the teachers, or the start
    held_s: float = 0.0  # time in hold since the last change settled
    starved: bool = False  # the student waited since the last change settled
    window_from: float | None = None
    last_time: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lt < self.ut:
            raise ValueError(f"need 0 <= lt < ut, got lt={self.lt} and ut={self.ut}")
        if self.batch > self.ut:
            raise ValueError(
                f"need batch <= ut, got batch={self.batch} and ut={self.ut}: "
                "not even one batch could be sent"
            )

    def may_send(self, level: Level, samples: int) -> bool:
        """Whether `samples` more may go out now. Keeps volume <= ut at all times."""
        return self.sending and level.volume + samples <= self.ut


Decision = tuple[Schedule, tuple[Instruction, ...]]


def on_volume(now: Schedule, level: Level) -> Decision:
    """Lines 3 to 12, once."""
    now = _watch(now, level)
    told: list[Instruction] = []
    if now.sending and level.volume + now.batch > now.ut:  # lines 4 to 6
        now = replace(now, sending=False)
        told.append("hold_inputs")
    if _wants_teacher(now, level):  # lines 7 to 9
        now = replace(now, request_open=True)
        told.append("request_teacher")
    if not now.sending and level.volume < max(now.lt, 1):  # lines 10 to 12
        now = replace(now, sending=True)
        told.append("send_inputs")
    if _can_spare_teacher(now, level):
        now = _changed(now, level.time)
        told.append("release_teacher")
    return now, tuple(told)


def on_teachers_changed(now: Schedule, time: float) -> Decision:
    """A teacher joined or was lost: look afresh once the change has settled."""
    return _changed(replace(now, request_open=False), time), ()


def on_request_failed(now: Schedule) -> Schedule:
    """The coordinator could not be asked: the next look may ask again."""
    return replace(now, request_open=False)


def _watch(now: Schedule, level: Level) -> Schedule:
    """Keep the facts that `guarded` needs: hold time and starvation."""
    if now.changed_at is None:
        now = _changed(now, level.time)
    before = level.time if now.last_time is None else now.last_time
    settled = level.time - (now.changed_at or 0.0) >= now.settle_s
    # Until the first answers are back, a full house of requests holds the sending too.
    held = level.time - before if settled and not now.sending else 0.0
    return replace(
        now,
        held_s=now.held_s + held,
        last_time=level.time,
        starved=now.starved or (settled and level.student_waits),
    )


def _changed(now: Schedule, time: float) -> Schedule:
    return replace(now, changed_at=time, window_from=time, held_s=0.0, starved=False)


def _wants_teacher(now: Schedule, level: Level) -> bool:
    if now.request_open or not now.sending:
        return False
    if now.policy == "paper":
        return level.unused == 0
    return now.starved and level.unused == 0


def _can_spare_teacher(now: Schedule, level: Level) -> bool:
    """Held for more than 1.5/n of a window: n - 1 teachers would have sufficed."""
    if now.policy == "paper" or level.teachers < 2 or now.window_from is None:
        return False
    watched = level.time - now.window_from - now.settle_s
    if watched < now.window_s:
        return False
    return now.held_s > 1.5 / level.teachers * watched
