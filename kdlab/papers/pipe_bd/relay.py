"""Who sends which rows to whom, and in which order a device does things (Algorithm 1).

    8: if no previous device: load_data()             -> Load
    9: else: receive(from previous)                   -> PostReceive ... AwaitReceive
   10: teacher forward                                -> TeacherForward
   11: if a next device: send(to next)                -> SendOutput ... AwaitSends
   12-13: student forward, loss, backward             -> StudentStep
   14: if AHD: share_gradient()                       -> ReduceGradients
   15: if not DPU: wait_all_devices()                 -> Barrier
   16: update_weight()                                -> Update

A receive is posted a step ahead, so that it goes on under the student's work; a send goes
on under it as well, and its buffer is free again `plan.lead` steps later at the latest.
That bounds how far a stage runs ahead of the next: with DPU nothing else would.

The same instructions are carried out over real devices (kdlab/methods/blockwise) and on a
simulated clock (kdlab/simulate/pipe_bd.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from kdlab.papers.pipe_bd.stages import Plan, Stage


@dataclass(frozen=True, slots=True)
class Transfer:
    """Rows [start, stop) of the batch from one device to another, every step."""

    sender: int
    receiver: int
    start: int
    stop: int


TimePart = Literal[
    "load",
    "receive",
    "teacher",
    "send",
    "student",
    "backward",
    "all_reduce",
    "barrier",
    "update",
]  # on a device `student` is its forward; simulated it is both


@dataclass(frozen=True)
class Instruction:
    """One thing to be done in one step."""

    step: int
    part: ClassVar[TimePart | None] = None  # that its time counts as; None takes none


class Load(Instruction):
    part = "load"


class PostReceive(Instruction):
    pass


class AwaitReceive(Instruction):
    part = "receive"


class AwaitSends(Instruction):
    """Those of this step have left; their buffer may be written again."""

    part = "send"


class TeacherForward(Instruction):
    part = "teacher"


class SendOutput(Instruction):
    part = "send"


class StudentStep(Instruction):
    part = "student"


class ReduceGradients(Instruction):
    part = "all_reduce"


class Barrier(Instruction):
    part = "barrier"


class Update(Instruction):
    part = "update"


@dataclass(frozen=True, slots=True)
class Span:
    """One thing a device did; seconds of one clock for all devices."""

    device: int
    part: TimePart
    step: int
    begin: float
    end: float


def transfers(sender: Stage, receiver: Stage) -> list[Transfer]:
    """Re-batching from one stage to the next: what overlaps is sent.

    Each receiver needs the rows of its own interval, each sender has those of its own; so
    stages of any two widths fit together, and every row is sent once.
    """
    found = []
    for src in sender.devices:
        has = sender.interval(src)
        for dst in receiver.devices:
            needs = receiver.interval(dst)
            start, stop = max(has[0], needs[0]), min(has[1], needs[1])
            if start < stop:
                found.append(Transfer(src, dst, start, stop))
    return found


def edges(plan: Plan) -> list[Transfer]:
    """All transfers of a plan, in an order that every device knows."""
    pairs = zip(plan.stages, plan.stages[1:], strict=False)
    return [transfer for a, b in pairs for transfer in transfers(a, b)]


def instructions(
    plan: Plan, device: int, steps: int | Callable[[], int], *, follows: bool = False
) -> Iterator[Instruction]:
    """What one device does in `steps` steps, lines 7 to 16, in order.

    A function is asked before each step how many there are: an epoch may end early when
    all devices learn of it `plan.lead` + 2 steps before. Where student blocks get each other's
    outputs (`follows`; not in the paper) these are sent too, so line 11 comes behind 13.
    """
    lead = plan.lead
    total = steps if callable(steps) else lambda: steps
    number = plan.stage_of(device)
    stage = plan.stages[number]
    is_first, is_last = number == 0, number == len(plan.stages) - 1
    if not is_first and total():
        yield PostReceive(0)
    step = 0
    while step < total():
        if is_first:
            yield Load(step)  # line 8
        else:
            yield AwaitReceive(step)  # line 9
            if step + 1 < total():
                yield PostReceive(step + 1)
        if not is_last and step >= lead:
            yield AwaitSends(step - lead)
        yield TeacherForward(step)  # line 10
        if not is_last and not follows:
            yield SendOutput(step)  # line 11
        yield StudentStep(step)  # lines 12 and 13
        if not is_last and follows:
            yield SendOutput(step)
        if len(stage.devices) > 1:
            yield ReduceGradients(step)  # line 14
        if not plan.decoupled:
            yield Barrier(step)  # line 15
        yield Update(step)  # line 16
        step += 1
    if not is_last:
        for sent in range(max(0, step - lead), step):
            yield AwaitSends(sent)
