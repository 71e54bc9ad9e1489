"""One device of a plan: executes the instructions of kdlab/papers/pipe_bd/relay.py.

Sends and receives run in the background (isend, irecv): a receive is posted one step ahead into a
buffer of its own, a send keeps its tensor until it has left. The times of the last instructions
are kept for the trace.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kdlab.methods.blockwise.pairs import BlockPair, block_loss
from kdlab.methods.blockwise.planning import wire_of
from kdlab.papers.pipe_bd import relay
from kdlab.papers.pipe_bd.relay import Span, TimePart, Transfer, edges, instructions
from kdlab.papers.pipe_bd.stages import Plan
from kdlab.supervision.process_groups import new_group
from kdlab.train.aggregation.ranks import average_statistics
from kdlab.train.step import TrainStep
from kdlab.train.sync_norm import synchronise

_MAX_SPANS = 20_000


@dataclass(slots=True)
class StageJob:
    """Blocks, data and callbacks of one stage."""

    pairs: Sequence[BlockPair]  # of the stage, in order, in the device's memory
    train_steps: Sequence[TrainStep]  # one for each pair
    # The normalised views of a step's rows [start, stop), for the first stage
    load: Callable[[int, int, int], Tensor]
    # The teacher's blocks before a first stage that does not begin with block 0
    prefix: Sequence[nn.Module] = ()
    # Rows of a step's batch; None is the plan's for every step
    batch_of: Callable[[int], int] | None = None
    schedule: Callable[[int], None] = lambda step: None  # called before a step
    # Called with a step's losses, one per block, each a mean over the device's rows
    on_step: Callable[[int, Sequence[Tensor]], None] = lambda step, losses: None
    # Called before a student block's forward with the step, the block's index in `pairs`
    # and the first row, to seed random numbers by these alone
    before_block: Callable[[int, int, int], None] | None = None
    # `sync` takes batch statistics over a shared stage's whole batch
    norm: Literal["sync", "local"] = "sync"
    # Process group of the transfers; None is the default one. Two plans that run at the
    # same time need one each.
    relay: dist.ProcessGroup | None = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """A device's rows of a batch of one size, and their transfers."""

    batch: int
    start: int
    stop: int
    incoming: list[Transfer]
    outgoing: list[Transfer]
    least: int  # fewest rows of a device of the stage, which set the number of parts


_UnderWay = tuple[Tensor, list[dist.Work | None]]
DpGroups = Mapping[tuple[int, ...], dist.ProcessGroup]
"""Process groups by their devices."""


class Worker:
    """Rank `device` of the default process group, which has a rank for each device."""

    def __init__(
        self, plan: Plan, device: int, job: StageJob, groups: DpGroups, shape: Sequence[int]
    ) -> None:
        """Prepare a device; `shape` is of one received row, ignored by the first stage."""
        number = plan.stage_of(device)
        self.plan, self.device, self.job = plan, device, job
        self.stage = plan.stages[number]
        self.group = groups.get(self.stage.devices)  # None for a single device
        self.everyone = groups.get(plan.devices)  # for the barrier
        self.shape = tuple(shape)
        self.follows = job.pairs[0].relayed > 1  # students' outputs are relayed, too
        self._rows: dict[int, _Rows] = {}
        self.spans: deque[Span] = deque(maxlen=_MAX_SPANS)
        self.exact = False  # spans end when a GPU has done the work, not when it is queued
        # Transfers under way by step: tensors must live until their end.
        self._receives: dict[int, _UnderWay] = {}
        self._sends: dict[int, _UnderWay] = {}
        self._input: Tensor | None = None
        # Where students follow each other: output of the student's blocks so far
        self._student_output: Tensor | None = None
        self._targets: list[Tensor] = []
        self._losses: list[Tensor] = []
        # All-reduces of this step's blocks: sums, and the gradients they replace
        self._shared: list[tuple[dist.Work | None, Tensor, list[Tensor]]] = []
        if job.norm == "sync" and len(self.stage.devices) > 1:
            for pair in job.pairs:
                pair.student = synchronise(pair.student, self.group)
        self.students = [pair.student for pair in job.pairs]
        parts = [m for pair in job.pairs for m in (pair.student, pair.teacher)]
        parameters = [p for part in parts for p in part.parameters()]
        self.dtype = parameters[0].dtype if parameters else torch.float32
        self.memory = parameters[0].device if parameters else torch.device("cpu")
        self.wire = wire_of(self.memory, job.relay)
        self._begin_alike()

    @torch.no_grad()
    def _begin_alike(self) -> None:
        """Give all devices of a stage the weights of the first."""
        if len(self.stage.devices) == 1:
            return
        for student in self.students:
            for tensor in (*student.parameters(), *student.buffers()):
                dist.broadcast(tensor, self.stage.devices[0], group=self.group)

    def run(self, steps: int) -> None:
        for _ in self.advance(steps):
            pass

    def advance(self, steps: int | Callable[[], int]) -> Iterator[int]:
        """Run `steps` steps; yield the number of each finished one.

        A function may end it early, see `relay.instructions`.
        """
        for student in self.students:
            student.train()
        every = instructions(self.plan, self.device, steps, follows=self.follows)
        for instruction in every:
            begin = time.monotonic()  # one clock for all processes of a machine
            self._execute(instruction)
            if instruction.part not in (None, "student"):  # it notes its own spans
                self._note(instruction.part, instruction.step, begin)
            if isinstance(instruction, relay.Update):
                self.job.on_step(instruction.step, self._losses)
                yield instruction.step

    def _note(self, part: TimePart, step: int, begin: float) -> float:
        if self.exact and self.memory.type == "cuda":
            torch.cuda.current_stream(self.memory).synchronize()
        now = time.monotonic()
        self.spans.append(Span(self.device, part, step, begin, now))
        return now

    def rows(self, step: int) -> _Rows:
        """Return this device's rows of the step's batch."""
        batch = self.plan.batch if self.job.batch_of is None else self.job.batch_of(step)
        if batch not in self._rows:
            plan = self.plan.of_batch(batch)
            stage, transfers = plan.stages[plan.stage_of(self.device)], edges(plan)
            self._rows[batch] = _Rows(
                batch,
                *stage.interval(self.device),
                incoming=[t for t in transfers if t.receiver == self.device],
                outgoing=[t for t in transfers if t.sender == self.device],
                least=min(stage.rows),
            )
        return self._rows[batch]

    def _execute(self, instruction: relay.Instruction) -> None:
        match instruction:
            case relay.Load(step):
                self._load(step)
            case relay.PostReceive(step):
                self._post_receive(step)
            case relay.AwaitReceive(step):
                received, works = self._receives.pop(step)
                _wait(works)
                # From pinned memory the host does not wait for the copy.
                arrived = received.to(self.memory, non_blocking=True)
                self._input, self._student_output = (
                    (part.contiguous() for part in arrived.unbind(1))
                    if self.follows
                    else (arrived, None)
                )
            case relay.AwaitSends(step):
                _, works = self._sends.pop(step)
                _wait(works)
            case relay.TeacherForward():
                self._teacher()
            case relay.SendOutput(step):
                self._send(step)
            case relay.StudentStep(step):
                self.job.schedule(step)
                self._student(step)
            case relay.ReduceGradients():
                self._all_reduce()
            case relay.Barrier() if self.everyone is not None:
                dist.barrier(group=self.everyone)
            case relay.Update():
                self._update()

    def _post_receive(self, step: int) -> None:
        """Post line 9 a step ahead: all rows of this device, from all devices that have some."""
        rows = self.rows(step)
        start, size = rows.start, rows.stop - rows.start
        staged = self.memory.type == "cuda" and self.wire.type == "cpu"
        shape = (size, 2, *self.shape) if self.follows else (size, *self.shape)
        buffer = torch.empty(shape, dtype=self.dtype, device=self.wire, pin_memory=staged)
        works = [
            dist.irecv(
                buffer[t.start - start : t.stop - start],
                t.sender,
                group=self.job.relay,
                tag=_tag(step, self.plan.lead),
            )
            for t in rows.incoming
        ]
        self._receives[step] = (buffer, works)

    def _load(self, step: int) -> None:
        rows = self.rows(step)
        self._input = self.job.load(step, rows.start, rows.stop)
        self._student_output = self._input if self.follows else None

    @torch.no_grad()
    def _teacher(self) -> None:
        """Line 10: compute the outputs of all teacher blocks, each the next one's input."""
        for block in self.job.prefix:  # a baseline runs the teacher from the images on
            self._input = block(self._input)
        self._targets, output = [], self._input
        for pair in self.job.pairs:
            output = pair.teacher(output)
            assert output is not None
            self._targets.append(output)

    def _send(self, step: int) -> None:
        """Line 11, under the student's work; the targets are never written again."""
        rows, output = self.rows(step), self._targets[-1]
        if self._student_output is not None:
            output = torch.stack([output, self._student_output], 1)
        sent = output.contiguous().to(self.wire)
        works = []
        for t in rows.outgoing:
            part = sent[t.start - rows.start : t.stop - rows.start]
            tag = _tag(step, self.plan.lead)
            works.append(dist.isend(part, t.receiver, group=self.job.relay, tag=tag))
        self._sends[step] = sent, works  # alive until it has left

    def _student(self, step: int) -> None:
        """Lines 12 and 13 for each block; each has its own autograd graph."""
        rows, source = self.rows(step), self._input
        assert source is not None
        size = rows.stop - rows.start
        share = size / rows.batch
        self._losses = []
        every = zip(self.job.pairs, self.job.train_steps, self._targets, strict=True)
        now = time.monotonic()

        def forward(loss_of: Callable[[slice], Tensor], part: slice) -> Tensor:
            nonlocal now
            if part.start:  # the backward of the part before
                now = self._note("backward", step, now)
            loss = loss_of(part)
            now = self._note("student", step, now)
            return loss

        def weigh(loss: Tensor) -> Tensor:
            """Scale so that the sum over the group is the mean over the whole batch."""
            return loss * share if share < 1 else loss

        for number, (pair, train_step, target) in enumerate(every):
            if pair.same:
                self._losses.append(torch.zeros((), device=self.memory))
                source = target
                if self._student_output is not None:
                    self._student_output = (
                        _frozen(pair, self._student_output)
                        if pair.inputs == "student"
                        else target
                    )
                continue
            if self.job.before_block is not None:
                self.job.before_block(step, number, rows.start)
            inputs, outputs = source, None
            if self._student_output is not None:
                inputs, outputs = self._student_output, list[Tensor]()
            loss_of = partial(
                forward,
                partial(block_loss, train_step, pair, inputs, target, outputs=outputs),
            )
            parts = train_step.parts(rows.least)
            self._losses.append(train_step.gradients(size, parts, loss_of, weigh))
            if self.group is not None:
                self._share(pair.student)
            now = self._note("backward", step, now)
            source = target
            if outputs is not None:
                self._student_output = torch.cat(outputs)

    def _update(self) -> None:
        """Line 16 for each block."""
        for train_step in self.job.train_steps:
            train_step.update()

    def average_statistics(self) -> None:
        """Average the running statistics of a shared stage, which each device took of its rows."""
        share = self.stage.rows[self.stage.devices.index(self.device)] / self.plan.batch
        for student in self.students:
            average_statistics(student, share, self.group)

    def _share(self, student: nn.Module) -> None:
        """Begin line 14 for a block: its gradients travel while the next one computes."""
        gradients = [p.grad for p in student.parameters() if p.grad is not None]
        if gradients:  # a path of skips alone has none
            flat = torch.cat([g.reshape(-1) for g in gradients])
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self._shared.append((work, flat, gradients))

    def _all_reduce(self) -> None:
        """Line 14: wait for the sums of all blocks' gradients and put them in place."""
        for work, flat, gradients in self._shared:
            _wait([work])
            parts = flat.split([g.numel() for g in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        self._shared.clear()


@torch.no_grad()
def _frozen(pair: BlockPair, source: Tensor) -> Tensor:
    """Compute the output of a student block that equals the teacher's."""
    output = pair.teacher(source)
    assert isinstance(output, Tensor)
    return output


def stage_groups(plans: Sequence[Plan]) -> DpGroups:
    """Make a process group for each set of devices that share a stage or a barrier.

    Every rank must call this at the same time with the same plans.
    """
    stages = [stage.devices for plan in plans for stage in plan.stages]
    stages += [plan.devices for plan in plans if not plan.decoupled]
    shared = dict.fromkeys(devices for devices in stages if len(devices) > 1)
    groups = {devices: new_group(sorted(devices)) for devices in shared}
    return {devices: group for devices, group in groups.items() if group is not None}


def _tag(step: int, lead: int) -> int:
    """Tag a transfer so that those of two ranks that are under way at once differ."""
    return step % (lead + 2)


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        assert work is not None  # this process belongs to the group
        work.wait()
