"""One device of a plan: carries out what kdlab/papers/pipe_bd/relay.py says, for real.

Sends and receives go on in the background (isend, irecv); a receive is posted one step
ahead into a buffer of its own, a send keeps its tensor until it has left. What the last
instructions took is kept for the trace.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from kdlab.papers.pipe_bd import relay
from kdlab.papers.pipe_bd.relay import LEAD, Span, edges, instructions, part_of
from kdlab.papers.pipe_bd.stages import Plan
from kdlab.train.blockwise.pairs import BlockPair
from kdlab.train.blockwise.sync_norm import synchronise

_MOST_SPANS = 20_000


@dataclass(slots=True)
class Job:
    """What a device is told besides the plan.

    Attributes:
        pairs: of its own stage's blocks, in order; on the device's memory.
        optimizers: one for each pair that has a student.
        load: the normalised views of a step's rows [start, stop), for the first stage.
        schedule: sets learning rates before a step.
        on_step: told of each step's losses, one per block, averaged over its own rows.
        norm: `sync` takes batch statistics over a shared stage's whole batch.
    """

    pairs: Sequence[BlockPair]
    optimizers: Sequence[Optimizer]
    load: Callable[[int, int, int], Tensor]
    schedule: Callable[[int], None] = lambda step: None
    on_step: Callable[[int, Sequence[Tensor]], None] = lambda step, losses: None
    norm: Literal["sync", "local"] = "sync"


@dataclass(slots=True)
class _Buffers:
    """What is under way, by step: tensors must live until then."""

    receives: dict[int, tuple[Tensor, list[Any]]] = field(default_factory=dict)
    sends: dict[int, list[Any]] = field(default_factory=dict)


class Worker:
    """Rank `device` of the default process group, which has a rank for each device."""

    def __init__(
        self, plan: Plan, device: int, job: Job, groups: Sequence[Any], shape: Sequence[int]
    ) -> None:
        """A device that has not begun.

        Args:
            plan: for all.
            device: this one's number, which is its rank.
            job: models and data.
            groups: process group of each stage, as `stage_groups` makes them.
            shape: of one row of what this stage receives; ignored by the first.
        """
        number = plan.stage_of(device)
        self.plan, self.device, self.job = plan, device, job
        self.stage, self.group = plan.stages[number], groups[number]
        self.rows = self.stage.interval(device)
        self.incoming = [t for t in edges(plan) if t.receiver == device]
        self.outgoing = [t for t in edges(plan) if t.sender == device]
        self.shape = tuple(shape)
        self.spans: deque[Span] = deque(maxlen=_MOST_SPANS)
        self._kept = _Buffers()
        self._input: Tensor | None = None
        self._targets: list[Tensor] = []
        self._losses: list[Tensor] = []
        if job.norm == "sync" and len(self.stage.devices) > 1:
            for pair in job.pairs:
                if pair.student is not None:
                    pair.student = synchronise(pair.student, self.group)
        self.students = [pair.student for pair in job.pairs if pair.student is not None]
        parts = [
            m for pair in job.pairs for m in (pair.student, pair.teacher) if m is not None
        ]
        found = [p for part in parts for p in part.parameters()]
        self.dtype = found[0].dtype if found else torch.float32
        self.memory = found[0].device if found else torch.device("cpu")
        self._begin_alike()

    @torch.no_grad()
    def _begin_alike(self) -> None:
        """A group has one model: that of its first device."""
        if len(self.stage.devices) == 1:
            return
        for student in self.students:
            for tensor in (*student.parameters(), *student.buffers()):
                dist.broadcast(tensor, self.stage.devices[0], group=self.group)

    def run(self, steps: int) -> None:
        for _ in self.advance(steps):
            pass

    def advance(self, steps: int) -> Iterator[int]:
        """Do `steps` steps; yields the number of each that is finished."""
        for student in self.students:
            student.train()
        for instruction in instructions(self.plan, self.device, steps):
            begin = time.monotonic()  # one clock for all processes of a machine
            self._carry_out(instruction)
            part = part_of(instruction)
            if part is not None:
                now = time.monotonic()
                self.spans.append(Span(self.device, part, instruction.step, begin, now))
            if isinstance(instruction, relay.Update):
                self.job.on_step(instruction.step, self._losses)
                yield instruction.step

    def _carry_out(self, instruction: relay.Instruction) -> None:
        match instruction:
            case relay.Load(step):
                self._input = self.job.load(step, *self.rows)
            case relay.PostReceive(step):
                self._post_receive(step)
            case relay.AwaitReceive(step):
                self._input, works = self._kept.receives.pop(step)
                _wait(works)
            case relay.AwaitSends(step):
                _wait(self._kept.sends.pop(step))
            case relay.Teacher():
                self._teacher()
            case relay.Send(step):
                self._send(step)
            case relay.Student(step):
                self.job.schedule(step)
                self._student()
            case relay.AllReduce():
                self._all_reduce()
            case relay.Barrier():
                dist.barrier()
            case relay.Update():
                for optimizer in self.job.optimizers:
                    optimizer.step()

    def _post_receive(self, step: int) -> None:
        """Line 9, before its time: all rows of this device, from everybody who has some."""
        start, stop = self.rows
        buffer = torch.empty(
            (stop - start, *self.shape), dtype=self.dtype, device=self.memory
        )
        works = [
            dist.irecv(buffer[t.start - start : t.stop - start], t.sender, tag=_tag(step))
            for t in self.incoming
        ]
        self._kept.receives[step] = (buffer, works)

    @torch.no_grad()
    def _teacher(self) -> None:
        """Line 10: the outputs of all its blocks, each the next one's input."""
        output = self._input
        self._targets = []
        for pair in self.job.pairs:
            output = pair.teacher(output)
            assert output is not None
            self._targets.append(output)

    def _send(self, step: int) -> None:
        """Line 11, while the student works. The targets are never written again."""
        start = self.rows[0]
        output = self._targets[-1].contiguous()
        works: list[Any] = [output]  # alive until it has left
        for t in self.outgoing:
            rows = output[t.start - start : t.stop - start]
            works.append(dist.isend(rows, t.receiver, tag=_tag(step)))
        self._kept.sends[step] = works

    def _student(self) -> None:
        """Lines 12 and 13 for each of its blocks; each has a graph of its own."""
        begin, end = self.rows
        share = (end - begin) / self.plan.batch
        source, optimizers = self._input, iter(self.job.optimizers)
        self._losses = []
        for pair, target in zip(self.job.pairs, self._targets, strict=True):
            if pair.student is not None:
                next(optimizers).zero_grad(set_to_none=True)
                loss = pair.loss(pair.student(source), target)
                # The sum over the group is then the mean over the whole batch.
                (loss * share if share < 1 else loss).backward()
                self._losses.append(loss.detach())
            source = target

    def _all_reduce(self) -> None:
        """Line 14: all gradients of the stage in one go."""
        gradients = [
            p.grad
            for student in self.students
            for p in student.parameters()
            if p.grad is not None
        ]
        if not gradients:
            return
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat, group=self.group)
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
            at += gradient.numel()


def stage_groups(plan: Plan) -> list[Any]:
    """A process group for each stage; every rank must call this, at the same time."""
    return [dist.new_group(list(stage.devices)) for stage in plan.stages]


def _tag(step: int) -> int:
    """Steps that can be under way at the same time differ; pairs of ranks do anyway."""
    return step % (LEAD + 2)


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        if not isinstance(work, Tensor):
            work.wait()
