"""Pipe-BD on a simulated clock: the same plans and the same instructions as on devices.

Only durations are simulated: of blocks by the rows of a device, of transfers by the link. So a
plan, its baselines and its ablations can be compared for more or other devices than are there
(Figs 4 to 6, Table II).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, SHARE, Spec
from kdlab.papers.pipe_bd import relay
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts, at
from kdlab.papers.pipe_bd.hybrid_plan import best_plan, internal_relaying, relaying
from kdlab.papers.pipe_bd.layerwise import packed
from kdlab.papers.pipe_bd.relay import Span, Transfer, edges, instructions
from kdlab.papers.pipe_bd.stages import Plan, Stage
from kdlab.simulate.kind import SimulationSpec

_POSITIVE = Range(ge=1)
_SHARES = 8  # points at which a block's time is set, between one row and the full batch


@dataclass(slots=True)
class _Device:
    number: int
    programme: Iterator[relay.Instruction]
    now: float = 0.0
    next: relay.Instruction | None = None
    # Seconds, when its port can send, and receive, the next rows; when its next batch is loaded.
    sends_from: float = 0.0
    receives_from: float = 0.0
    loaded_at: float = 0.0


@dataclass(slots=True)
class Relay:
    """Simulates a plan step by step. Call `run()`, then read `step_s` and `spans`."""

    costs: StageCosts
    plan: Plan
    steps: int = 40
    spans: list[Span] = field(default_factory=list)
    ends: dict[tuple[int, int], float] = field(default_factory=dict)  # (device, step)
    _posted: dict[tuple[int, int], float] = field(default_factory=dict)
    _arrived: dict[tuple[Transfer, int], float] = field(default_factory=dict)
    _met: dict[tuple[str, int, int], dict[int, float]] = field(default_factory=dict)
    _edges: list[Transfer] = field(init=False)
    _devices: dict[int, _Device] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._edges = edges(self.plan)

    def run(self) -> "Relay":
        for number in self.plan.devices:
            programme = instructions(self.plan, number, self.steps)
            self._devices[number] = _Device(number, programme, next=next(programme, None))
        moved = True
        while moved:
            moved = False
            for device in self._devices.values():
                while device.next is not None and self._execute(device, device.next):
                    device.next = next(device.programme, None)
                    moved = True
        if any(device.next is not None for device in self._devices.values()):
            raise RuntimeError(
                "devices wait for each other for ever: a defect of the relay"
            )
        return self

    @property
    def step_s(self) -> float:
        """Seconds of a step of the full pipeline: the slowest device over the last two thirds."""
        first, last = self.steps // 3, self.steps - 1
        return max(
            (self.ends[d, last] - self.ends[d, first]) / (last - first)
            for d in self.plan.devices
        )

    def _execute(self, device: _Device, instruction: relay.Instruction) -> bool:
        """Execute an instruction if the device need not wait; return whether it was done."""
        begin, step = device.now, instruction.step
        match instruction:
            case relay.PostReceive():
                self._posted[device.number, step] = begin
                return True
            case relay.AwaitReceive():
                done = self._receive(device, step)
            case relay.AwaitSends():
                done = self._has_sent(device, step)
            case relay.ReduceGradients() | relay.Barrier():
                done = self._meet(device, instruction)
            case _:
                self._work(device, instruction)
                done = True
        if done and instruction.part is not None:
            self.spans.append(
                Span(device.number, instruction.part, step, begin, device.now)
            )
        return done

    def _work(self, device: _Device, instruction: relay.Instruction) -> None:
        """Execute an instruction that needs no other device."""
        _, blocks, rows = self._place(device.number)
        match instruction:
            case relay.Load():
                self._load(device, self.costs.profile.load_s * rows / self.plan.batch)
            case relay.TeacherForward():
                device.now += sum(at(b.teacher_s, rows) for b in blocks)
            case relay.SendOutput(step):
                self._send(device, step, blocks[-1].output_bytes)
            case relay.StudentStep():
                device.now += sum(at(b.student_s, rows) for b in blocks)
            case relay.Update(step):
                self.ends[device.number, step] = device.now

    def _place(self, device: int) -> tuple[Stage, Sequence[Block], int]:
        """A device's stage, its blocks and its rows."""
        stage = self.plan.stages[self.plan.stage_of(device)]
        blocks = self.costs.profile.types[self.costs.profile.devices[device]]
        rows = stage.rows[stage.devices.index(device)]
        return stage, blocks[stage.first : stage.stop], rows

    def _load(self, device: _Device, takes: float) -> None:
        """Load a batch; the part that overlaps with computing began with the batch before."""
        overlap = self.costs.profile.load_overlap
        device.now = max(device.now, device.loaded_at)
        device.now += (1 - overlap) * takes
        device.loaded_at = device.now + overlap * takes

    def _link(self, device: int) -> DeviceLink:
        return self.costs.profile.link_of(self.costs.profile.devices[device])

    def _send(self, device: _Device, step: int, row_bytes: float) -> None:
        """Send an output; each end's port is occupied for as long as its own link takes."""
        link = self._link(device.number)
        mine = [t for t in self._edges if t.sender == device.number]
        rows = sum(t.stop - t.start for t in mine)
        for t in mine:
            receiver = self._devices[t.receiver]
            size, there = (t.stop - t.start) * row_bytes, self._link(t.receiver)
            # One latency for the whole output, however it is divided among receivers.
            takes = link.transfer_s(rows * row_bytes) * (t.stop - t.start) / rows
            device.now += (1 - link.overlap) * takes
            begin = max(device.now, device.sends_from)
            device.sends_from = begin + link.overlap * takes
            came = there.overlap * size / there.bytes_per_s
            receiver.receives_from = max(receiver.receives_from + came, device.sends_from)
            self._arrived[t, step] = receiver.receives_from

    def _receive(self, device: _Device, step: int) -> bool:
        link = self._link(device.number)
        mine = [t for t in self._edges if t.receiver == device.number]
        if any((t, step) not in self._arrived for t in mine):
            return False
        stage = self.plan.stages[self.plan.stage_of(device.number)]
        before = self.costs.profile.types[self.costs.profile.devices[device.number]]
        size = before[stage.first - 1].output_bytes
        rows = sum(t.stop - t.start for t in mine)
        device.now = max(device.now, *(self._arrived[t, step] for t in mine))
        copied = (1 - link.overlap) * link.transfer_s(rows * size)
        device.now += copied
        return True

    def _has_sent(self, device: _Device, step: int) -> bool:
        """Wait for sends: each is done when its receive is posted and its rows have arrived."""
        mine = [t for t in self._edges if t.sender == device.number]
        if any((t.receiver, step) not in self._posted for t in mine):
            return False
        for t in mine:
            posted = self._posted[t.receiver, step]
            device.now = max(device.now, self._arrived[t, step], posted)
        return True

    def _meet(
        self, device: _Device, instruction: relay.ReduceGradients | relay.Barrier
    ) -> bool:
        """Meet all devices of a stage for its gradients, or of the plan at a barrier."""
        stage, _, _ = self._place(device.number)
        shares = isinstance(instruction, relay.ReduceGradients)
        all_of = stage.devices if shares else self.plan.devices
        place = type(instruction).__name__, stage.first if shares else 0, instruction.step
        there = self._met.setdefault(place, {})
        there.setdefault(device.number, device.now)
        if len(there) < len(all_of):
            return False
        device.now = max(there.values())
        if shares:
            types = {self.costs.profile.devices[d] for d in all_of}
            among = stage.first, stage.stop, types, len(all_of)
            device.now += self.costs.all_reduce_s(*among)
        return True


# Cards


@dataclass(frozen=True, kw_only=True)
class BlockFacts(Spec):
    """One pair of blocks on the first type of device, with the whole batch.

    teacher_ms: forward. student_ms: forward, backward and update.
    output_kb: of the teacher's output, per row. gradient_mb: of the student.
    """

    teacher_ms: Annotated[float, POSITIVE]
    student_ms: Annotated[float, POSITIVE]
    output_kb: Annotated[float, NOT_NEGATIVE] = 0.0
    gradient_mb: Annotated[float, NOT_NEGATIVE] = 0.0


@dataclass(frozen=True, kw_only=True)
class StudentFit(Spec):
    """Another cost of the students, which the paper does not publish, with the fitted profile.

    times: factor of a student block's time over its teacher's.
    floor, scale: of the fitted profile; `scale` multiplies the teacher's times.
    """

    times: Annotated[float, POSITIVE]
    floor: Annotated[float, SHARE]
    scale: Annotated[float, POSITIVE]


@dataclass(frozen=True, kw_only=True)
class PipelineCase(Spec):
    """A workload on a machine.

    devices: type of each, in order; `speeds` has the speed of each type relative to the first.
    floor: share of a block's time that does not shrink with its rows (utilisation).
    load_ms: of loading a whole batch in one device's process, beside the computing.
    gb_per_s, latency_ms: of the link; overlap: share of a transfer that costs nothing.
    published: epoch times of the paper in seconds, by dp, ls, pipe_bd.
    fits: other profiles that the paper does not rule out; their results give a range.
    """

    name: str
    blocks: tuple[BlockFacts, ...]
    devices: tuple[str, ...]
    speeds: Mapping[str, float] = field(default_factory=dict)
    batch: Annotated[int, _POSITIVE] = 256
    floor: Annotated[float, SHARE] = 0.0
    load_ms: Annotated[float, NOT_NEGATIVE] = 0.0
    gb_per_s: Annotated[float, POSITIVE] = 12.0
    latency_ms: Annotated[float, NOT_NEGATIVE] = 0.02
    overlap: Annotated[float, Range(ge=0, le=1)] = 1.0
    published: Mapping[str, float] = field(default_factory=dict)
    fits: tuple[StudentFit, ...] = ()

    def fitted(self) -> Iterator["PipelineCase"]:
        """Yield the case with each of the other profiles."""
        for fit in self.fits:
            taught = [fit.scale * block.teacher_ms for block in self.blocks]
            blocks = tuple(
                replace(block, teacher_ms=ms, student_ms=fit.times * ms)
                for block, ms in zip(self.blocks, taught, strict=True)
            )
            yield replace(self, blocks=blocks, floor=fit.floor, fits=())

    def cross_faults(self) -> Iterator[Fault]:
        if not self.blocks:
            yield Fault("blocks", "is empty; give at least one")
        if not self.devices:
            yield Fault("devices", "is empty; give at least one")
        elif len(self.devices) > self.batch * max(1, len(self.blocks)):
            yield Fault("devices", f"are {len(self.devices)}, more than blocks times batch")
        if unknown := self.published.keys() - {"dp", "ls", "pipe_bd"}:
            names = ", ".join(map(str, unknown))
            yield Fault("published", f"has {names}; it takes dp, ls and pipe_bd")
        for part, numbers in {"speeds": self.speeds, "published": self.published}.items():
            faults = ((name, POSITIVE.fault(value)) for name, value in numbers.items())
            yield from (Fault(f"{part}.{name}", why) for name, why in faults if why)

    def profile(self) -> Profile:
        return Profile(
            types={kind: self._blocks(kind) for kind in dict.fromkeys(self.devices)},
            devices=self.devices,
            link=DeviceLink(
                bytes_per_s=self.gb_per_s * 1e9,
                latency_s=self.latency_ms / 1e3,
                overlap=self.overlap,
            ),
            load_s=self.load_ms / 1e3,
            load_overlap=1.0,
        )

    def _blocks(self, kind: str) -> list[Block]:
        speed = self.speeds.get(kind, 1.0)
        shares = range(1, _SHARES + 1)
        rows = sorted({1, *(max(1, self.batch * k // _SHARES) for k in shares)})

        def seconds(milliseconds: float) -> dict[int, float]:
            full_s, floor = milliseconds / 1e3 / speed, self.floor
            return {r: full_s * (floor + (1 - floor) * r / self.batch) for r in rows}

        return [
            Block(
                teacher_s=seconds(facts.teacher_ms),
                student_s=seconds(facts.student_ms),
                output_bytes=facts.output_kb * 1e3,
                gradient_bytes=facts.gradient_mb * 1e6,
            )
            for facts in self.blocks
        ]


@register("simulate/pipe_bd")
@dataclass(frozen=True, kw_only=True)
class PipeBd(SimulationSpec):
    """Workloads on machines: each is simulated with every variant of Fig. 4.

    steps: simulated steps of each variant.
    calibration: published numbers to which the profile was fitted: they are no evidence.
    """

    cases: tuple[PipelineCase, ...]
    steps: Annotated[int, Range(ge=10)] = 40
    calibration: str = ""

    def cross_faults(self) -> Iterator[Fault]:
        if not self.cases:
            yield Fault("cases", "is empty; give at least one")


@dataclass(slots=True)
class PipelineOutcome:
    """Seconds of one step of every block, by variant; None where there is no such plan."""

    case: PipelineCase
    ideal_s: float
    seconds: dict[str, float | None]
    plan: Plan  # of TR+DPU+AHD
    looked_at: int

    def over_dp(self, variant: str) -> float | None:
        seconds, dp = self.seconds[variant], self.seconds["DP"]
        return None if seconds is None or dp is None else dp / seconds


def simulate_case(spec: PipeBd, case: PipelineCase) -> PipelineOutcome:
    """Simulate one case: the baselines by their costs, the pipelines step by step."""
    costs = StageCosts(case.profile(), case.batch)

    def piped(plan: Plan | None) -> float | None:
        return None if plan is None else Relay(costs, plan, spec.steps).run().step_s

    relayed = relaying(costs).plan
    best = best_plan(costs)
    assert best.plan is not None  # without a memory limit there is always one
    internal = internal_relaying(costs) if costs.devices <= case.batch else None
    coupled = relaying(costs, decoupled=False).plan
    return PipelineOutcome(
        case=case,
        ideal_s=costs.ideal_s(),
        seconds={
            "DP": costs.data_parallel_s(),
            "LS": packed(costs.blocks, costs.devices, costs.own_s, costs.task_s).step_s,
            "TR": piped(coupled),
            "TR+DPU": piped(relayed),
            "TR+DPU+AHD": piped(best.plan),
            "TR+IR": piped(internal),
        },
        plan=best.plan,
        looked_at=best.looked_at,
    )
