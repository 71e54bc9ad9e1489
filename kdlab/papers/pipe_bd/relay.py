"""Transfers between devices, and the order of a device's instructions (Algorithm 1).

    8: if no previous device: load_data()             -> Load
    9: else: receive(from previous)                   -> PostReceive ... AwaitReceive
   10: teacher forward                                -> TeacherForward
   11: if a next device: send(to next)                -> SendOutput ... AwaitSends
   12-13: student forward, loss, backward             -> StudentStep
   14: if AHD: share_gradient()                       -> ReduceGradients
   15: if not DPU: wait_all_devices()                 -> Barrier
   16: update_weight()                                -> Update

A receive is posted a step ahead, so that it runs under the student's work, as does a send, whose
buffer is free again `plan.lead` steps later at the latest. That bounds how far a stage runs ahead
of the next; with DPU nothing else would.

Real devices (kdlab/methods/blockwise) and a simulated clock (kdlab/simulate/pipe_bd.py) execute
the same instructions.
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
    "load",  # line 8
    "receive",  # line 9
    "teacher",  # line 10
    "send",  # line 11
    "student",  # line 12; in the simulation 13, too
    "backward",  # line 13
    "all_reduce",  # line 14
    "barrier",  # line 15
    "update",  # line 16
]


@dataclass(frozen=True)
class Instruction:
    """One instruction of one step."""

    step: int
    part: ClassVar[TimePart | None] = None  # of the trace; None takes no time


class Load(Instruction):
    part = "load"


class PostReceive(Instruction):
    """Begin line 9 a step ahead; the paper's receive overlaps, too (V-B)."""


class AwaitReceive(Instruction):
    part = "receive"


class AwaitSends(Instruction):
    """Wait until a step's sends have left and their buffer may be written again."""

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
    """Time of one part on a device, in seconds of one clock for all devices."""

    device: int
    part: TimePart
    step: int
    begin: float
    end: float


def transfers(sender: Stage, receiver: Stage) -> list[Transfer]:
    """Rows that each device of a stage sends to each of the next: those that both have.

    Every row is sent once, whatever the numbers of devices.
    """
    overlaps = []
    for src in sender.devices:
        held = sender.interval(src)
        for dst in receiver.devices:
            needed = receiver.interval(dst)
            start, stop = max(held[0], needed[0]), min(held[1], needed[1])
            if start < stop:
                overlaps.append(Transfer(src, dst, start, stop))
    return overlaps


def edges(plan: Plan) -> list[Transfer]:
    """All transfers of a plan, in the same order on every device."""
    pairs = zip(plan.stages, plan.stages[1:], strict=False)
    return [transfer for a, b in pairs for transfer in transfers(a, b)]


def instructions(
    plan: Plan, device: int, steps: int | Callable[[], int], *, follows: bool = False
) -> Iterator[Instruction]:
    """Instructions of one device in `steps` steps: lines 7 to 16, in order.

    A function gives the number of steps before each one: an epoch may end early where all devices
    learn of it `plan.lead` + 2 steps before. Where student blocks get each other's outputs
    (`follows`; not in the paper) these are sent, too, so line 11 comes after line 13.
    """
    lead = plan.lead
    total = steps if callable(steps) else lambda: steps
    number = plan.stage_of(device)
    stage = plan.stages[number]
    is_first, is_last = number == 0, number == len(plan.stages) - 1
    if not is_first and total():  # at an epoch's start nothing is under way (IV-B)
        yield PostReceive(0)
    step = 0
    while step < total():
        if is_first:
            yield Load(step)  # line 8
        else:
            yield AwaitReceive(step)  # line 9
            if step + 1 < total():  # ahead of its line 9, under this step's work (V-B)
                yield PostReceive(step + 1)
        if not is_last and step >= lead:  # the buffer of line 11 is needed again
            yield AwaitSends(step - lead)
        yield TeacherForward(step)  # line 10
        if not is_last and not follows:
            yield SendOutput(
                step
            )  # line 11: before the student, which it runs under (IV-A)
        yield StudentStep(step)  # lines 12 and 13
        if not is_last and follows:  # not in the paper, see above
            yield SendOutput(step)
        if len(stage.devices) > 1:  # line 14's condition, by stage: AHD decided to share it
            yield ReduceGradients(step)  # line 14
        if not plan.decoupled:  # not DPU
            yield Barrier(step)  # line 15
        yield Update(step)  # line 16
        step += 1
    if not is_last:  # IV-B: full synchronization before the next epoch
        for sent in range(max(0, step - lead), step):
            yield AwaitSends(sent)
