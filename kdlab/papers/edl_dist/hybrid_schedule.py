"""Hybrid scheduling of one student: Algorithm 1 of EDL-Dist (section 3.2).

Teachers fill a buffer of soft labels, training steps drain it.

    1: schedule n Teacher resources to the Student resource    -> start()
    2: while knowledge distillation is not terminated do       -> one on_volume() each
    3:   volume = get_volume(unused soft labels)               -> BufferState
    4:   if volume > ut then stop sending                      -> hold_inputs
    7:   if volume == 0 then schedule an additional Teacher    -> request_teacher
    10:  if volume < lt then continue sending                  -> send_inputs

`paper` is these lines as printed. Two things follow from them at scale: the buffer passes
ut by all that is in flight when sending stops, and every look at an empty buffer asks for
one more teacher, from the start, when no answer can be there yet.

`guarded` (the default) deviates in three places (docs/edl_dist.md), by what
beyond/flow_control.py saw:
* Lines 4 and 10 look ahead. A label asked for now arrives after the time to answer L;
  until then the student trains on demand x L samples (Little's law), its `lead`. So
  unused + in flight is compared with thresholds that are raised by what is trained on
  meanwhile: lt and ut mean the volume when the answer arrives. Unused + in flight never
  passes ut until the student waited for that; then it is the `credit`.
* Line 7 asks when the student starved for want of teachers, not of thresholds.
* A teacher that is not needed is released (the paper has no release).
"""

from dataclasses import dataclass, replace
from typing import Literal

from kdlab.renamed import renamed

Instruction = Literal["send_inputs", "hold_inputs", "request_teacher", "release_teacher"]
Policy = Literal["paper", "guarded"]

_MIN_LT, _MIN_UT = 256, 2048  # samples
_LT_BATCHES, _UT_BATCHES = 2, 8


def default_thresholds(batch: int) -> tuple[int, int]:
    """(lt, ut) in samples when nobody chose them: one batch trained on, one ready."""
    return max(_MIN_LT, _LT_BATCHES * batch), max(_MIN_UT, _UT_BATCHES * batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """What the monitoring task sees (line 3). All counts in samples."""

    unused: int  # soft labels that arrived and were not trained on yet: the paper's volume
    in_flight: int  # sent to teachers, not answered yet
    lead: int = 0  # trained on between asking and the answer: demand x time to answer
    credit: int = 0  # unused + in flight that the rates and latencies call for
    wants_teacher: bool = False  # guarded: the student starved for want of teachers
    spares_teacher: bool = False  # guarded: the others would do


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    lt: int  # samples: lower threshold
    ut: int  # samples: upper threshold
    batch: int = 1  # samples of the largest batch
    max_in_flight: int | None = None  # samples: bound by memory, whatever the credit
    policy: Policy = "guarded"
    sending: bool = True
    request_open: bool = False  # a teacher was asked for and has not joined yet

    def __post_init__(self) -> None:
        if not 0 <= self.lt < self.ut:
            raise ValueError(f"need 0 <= lt < ut, got lt={self.lt} and ut={self.ut}")
        if self.batch > self.ut:
            raise ValueError(
                f"need batch <= ut, got batch={self.batch} and ut={self.ut}: "
                "not even one batch could be sent"
            )

    def may_send(self, level: BufferState, samples: int) -> bool:
        """Whether `samples` more may go out now."""
        if not self.sending or not self.fits_memory(level, samples):
            return False
        if self.policy == "paper":
            return True
        return level.unused + level.in_flight + samples <= self.room(level)

    def room(self, level: BufferState) -> int:
        """Samples that may be unused or in flight (guarded)."""
        return max(self.ut, level.credit)

    def fits_memory(self, level: BufferState, samples: int) -> bool:
        most = self.max_in_flight
        return most is None or not level.in_flight or level.in_flight + samples <= most

    def may_ask(self) -> "Schedule":
        """The teacher that was asked for has joined, or could not be asked for."""
        return replace(self, request_open=False)


Decision = tuple[Schedule, tuple[Instruction, ...]]


def on_volume(now: Schedule, level: BufferState) -> Decision:
    """Lines 3 to 12, once."""
    instructions: list[Instruction] = []
    if now.sending and _holds(now, level):  # lines 4 to 6
        now = replace(now, sending=False)
        instructions.append("hold_inputs")
    if not now.request_open and _wants_teacher(now, level):  # lines 7 to 9
        now = replace(now, request_open=True)
        instructions.append("request_teacher")
    if not now.sending and _sends(now, level):  # lines 10 to 12
        now = replace(now, sending=True)
        instructions.append("send_inputs")
    if now.policy == "guarded" and level.spares_teacher:
        instructions.append("release_teacher")
    return now, tuple(instructions)


def _holds(now: Schedule, level: BufferState) -> bool:
    if now.policy == "paper":
        return level.unused > now.ut
    return level.unused + level.in_flight + now.batch > now.room(level)


def _sends(now: Schedule, level: BufferState) -> bool:
    if now.policy == "paper":
        return level.unused < max(now.lt, 1)
    if _holds(now, level):
        return False
    # Between the two nobody is asked; where the credit is no more than what is needed,
    # that would waste teachers.
    ahead = level.unused + level.in_flight
    return level.credit >= now.ut or ahead < max(now.lt, 1) + level.lead


def _wants_teacher(now: Schedule, level: BufferState) -> bool:
    if now.policy == "paper":
        return level.unused == 0
    return level.wants_teacher


__getattr__ = renamed(__name__, {"Level": "BufferState"})
