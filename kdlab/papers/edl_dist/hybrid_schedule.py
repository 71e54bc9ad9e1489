"""The hybrid schedule of one student: Algorithm 1 of EDL-Dist (section 3.2).

Teachers fill a buffer of soft labels, training steps drain it.

    1: schedule n Teacher resources to the Student resource    -> leases.on_demand
    2: while knowledge distillation is not terminated do       -> one on_volume() each
    3:   volume = get_volume(unused soft labels)               -> BufferState
    4:   if volume > ut then stop sending                      -> hold_inputs
    7:   if volume == 0 then schedule an additional Teacher    -> request_teacher
    10:  if volume < lt then continue sending                  -> send_inputs

`paper` is these lines as printed. Two things follow from them at scale: the buffer exceeds
ut by all that is in flight when sending stops, and each turn with an empty buffer asks for
one more teacher, from the start, when no answer can be there yet.

`guarded` (the default) deviates in three places (docs/edl_dist.md), by what
beyond/flow_control.py observed:
* Lines 4 and 10 look ahead. A label asked for now arrives after the time to answer L;
  until then the student trains on demand x L samples (Little's law), its `lead`. So
  unused + in flight is compared with thresholds that are raised by what is trained on
  meanwhile: lt and ut mean the volume when the answer arrives. Unused + in flight never
  exceeds ut until the student waited because of ut; from then on the limit is `credit`.
* Line 7 asks when the student starved for want of teachers, not of thresholds.
* A teacher that is not needed is released (the paper has no release).
"""

from dataclasses import dataclass, replace
from typing import Literal

from kdlab.renamed import renamed

Instruction = Literal["send_inputs", "hold_inputs", "request_teacher", "release_teacher"]
Policy = Literal["paper", "guarded"]

# 3.2: thresholds "can be set by the user based on the size of storage"; without default
_MIN_LT, _MIN_UT = 256, 2048  # samples
_LT_BATCHES, _UT_BATCHES = 2, 8


def default_thresholds(batch: int) -> tuple[int, int]:
    """(lt, ut) in samples where the user sets none: one batch trained on, one ready."""
    return max(_MIN_LT, _LT_BATCHES * batch), max(_MIN_UT, _UT_BATCHES * batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """The buffer as the monitoring task sees it (line 3). All counts in samples."""

    # The paper's volume: soft labels that arrived and were not trained on. It counts their bytes,
    # which is this number times the average size of a sample (3.2).
    unused: int
    in_flight: int  # sent to teachers, not answered yet
    lead: int = 0  # trained on between request and answer: demand x time to answer
    credit: int = 0  # unused + in flight that the rates and latencies call for
    wants_teacher: bool = False  # guarded: the student starved for want of teachers
    spares_teacher: bool = False  # guarded: the other teachers suffice


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:  # a value: `on_volume` returns the next one
    lt: int  # samples: lower threshold
    ut: int  # samples: upper threshold
    batch: int = 1  # samples of the largest batch
    max_in_flight: int | None = None  # samples: bound by memory, whatever the credit
    policy: Policy = "guarded"
    sending: bool = True  # lines 5 and 11 switch it; between the thresholds it stays
    request_open: bool = False  # line 8 was executed and the teacher has not joined yet

    def __post_init__(self) -> None:
        if not 0 <= self.lt < self.ut:
            raise ValueError(f"need 0 <= lt < ut, got lt={self.lt} and ut={self.ut}")
        if self.batch > self.ut:
            raise ValueError(
                f"need batch <= ut, got batch={self.batch} and ut={self.ut}: "
                "not even one batch could be sent"
            )

    def may_send(self, level: BufferState, samples: int) -> bool:
        """Return whether `samples` more may be sent now."""
        if not self.sending or not self.fits_memory(level, samples):
            return False
        if self.policy == "paper":  # between lines 11 and 5 it sends without limit
            return True
        return level.unused + level.in_flight + samples <= self.room(level)

    def room(self, level: BufferState) -> int:
        """Samples that may be unused or in flight (guarded)."""
        return max(self.ut, level.credit)

    def fits_memory(self, level: BufferState, samples: int) -> bool:
        most = self.max_in_flight
        return most is None or not level.in_flight or level.in_flight + samples <= most

    def may_ask(self) -> "Schedule":
        """Allow the next request: the teacher has joined, or the request failed."""
        return replace(self, request_open=False)


Decision = tuple[Schedule, tuple[Instruction, ...]]


def on_volume(now: Schedule, level: BufferState) -> Decision:
    """Run lines 3 to 12 once: the next schedule and the instructions, in the paper's order.

    Each switch is one instruction when it happens; the paper repeats it in each turn.
    """
    instructions: list[Instruction] = []
    if now.sending and _holds(now, level):  # lines 4 to 6
        now = replace(now, sending=False)
        instructions.append("hold_inputs")
    # Lines 7 to 9. One request is open at a time, also under `paper`.
    if not now.request_open and _wants_teacher(now, level):
        now = replace(now, request_open=True)
        instructions.append("request_teacher")
    if not now.sending and _sends(now, level):  # lines 10 to 12
        now = replace(now, sending=True)
        instructions.append("send_inputs")
    if now.policy == "guarded" and level.spares_teacher:  # not in Algorithm 1
        instructions.append("release_teacher")
    return now, tuple(instructions)


def _holds(now: Schedule, level: BufferState) -> bool:
    if now.policy == "paper":
        return level.unused > now.ut  # line 4
    return level.unused + level.in_flight + now.batch > now.room(level)


def _sends(now: Schedule, level: BufferState) -> bool:
    if now.policy == "paper":
        # Line 10. With lt = 0 as printed, an empty buffer would never be filled again.
        return level.unused < max(now.lt, 1)
    if _holds(now, level):
        return False
    # Between the thresholds teachers are idle; where the credit is only just what is needed, that
    # wastes them.
    ahead = level.unused + level.in_flight
    return level.credit >= now.ut or ahead < max(now.lt, 1) + level.lead


def _wants_teacher(now: Schedule, level: BufferState) -> bool:
    if now.policy == "paper":
        return level.unused == 0  # line 7
    return level.wants_teacher  # 3.2: "stay idle in order to wait for the soft labels"


__getattr__ = renamed(__name__, {"Level": "BufferState"})
