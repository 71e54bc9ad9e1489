"""Profile of the blocks, and the time and memory of a step of a stage.

The paper profiles each block at each feasible batch size (section IV-C) and prints no cost model.
Here a step of a stage takes as long as its slowest device, and a device takes

    teacher + student + the share of transfers and loading that its own processor does

for its rows, then the all-reduce of the stage. Work beside the computing (a link that copies by
itself, a loading thread) counts only where it takes longer: a step is as long as its busiest
resource. Devices may differ in speed, link and memory.

With DPU a step of a pipeline is that of its slowest stage (Fig. 3c). With a barrier each step waits
for the relay from the first device on (Fig. 3b), and is that of the latest stage. Left out: several
devices that send to fewer, whose ports then take longer.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import NamedTuple

from kdlab.papers.pipe_bd.stages import LEAD, Plan, Stage
from kdlab.papers.shares import shared_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One pair of blocks on one type of device."""

    teacher_s: Mapping[int, float]  # seconds of line 10, the teacher's forward, by rows
    # Seconds of lines 12, 13 and 16, the student's forward, loss, backward and update, by rows
    student_s: Mapping[int, float]
    output_bytes: float = 0.0  # of the teacher's output, per row, which line 11 sends
    gradient_bytes: float = 0.0  # of the student, which line 14 shares
    fixed_bytes: float = 0.0  # memory of weights, gradients and optimiser
    row_bytes: float = 0.0  # memory of activations and buffers, per row
    # Batch norms of the student that meet in a shared stage; not in the paper
    norms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLink:
    """A device's link to all others, with one rate for sending and one for receiving."""

    bytes_per_s: float = inf
    latency_s: float = 0.0
    # Share of a transfer that the device's processor has no part in (V-B: communications
    # overlap with computations "as much as possible")
    overlap: float = 1.0
    # Seconds of an all-reduce of a few bytes; None derives it from the latency
    meet_s: float | None = None

    def transfer_s(self, size: float) -> float:
        return self.latency_s + size / self.bytes_per_s

    def all_reduce_s(self, size: float, devices: int) -> float:
        """Seconds of a ring: 2 (g - 1) turns, each sending 1 / g of the bytes."""
        if devices == 1:  # nothing to share: line 14 is for split blocks alone
            return 0.0
        turns = 2 * (devices - 1)
        return turns * (self.latency_s + size / devices / self.bytes_per_s)

    def norm_s(self, devices: int) -> float:
        """Seconds of a batch norm over a group: one small message in each direction."""
        if devices == 1:
            return 0.0
        return 2 * (self.all_reduce_s(0.0, devices) if self.meet_s is None else self.meet_s)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Measured blocks of each type of device (IV-C), and the devices in their order."""

    # Blocks by type of device; the same number for each
    types: Mapping[str, Sequence[Block]]
    devices: Sequence[str]  # type of each device
    link: DeviceLink = DeviceLink()  # of a type that `links` does not name
    links: Mapping[str, DeviceLink] = field(default_factory=dict)  # by type of device
    load_s: float = 0.0  # seconds to load a whole batch in one device's process
    # Share of loading that goes on beside the computing: 0 where one core does both
    load_overlap: float = 0.0
    memory_bytes: Sequence[float] | None = None  # of each device; None is no limit
    # Measured time of meetings in a shared stage, over the links' prediction (meetings.py)
    sharing: float = 1.0

    @property
    def blocks(self) -> int:
        return len(self.types[self.devices[0]])

    def link_of(self, kind: str) -> DeviceLink:
        return self.links.get(kind, self.link)


_Points = tuple[list[int], list[float]]  # profiled numbers of rows, and their seconds
_Sums = tuple[list[float], list[float], list[float]]


def at(by_rows: Mapping[int, float], rows: int) -> float:
    """Seconds of this many rows, on lines between and beyond the profiled numbers of rows.

    Below the fewest rows at least their proportion of the time.
    """
    return _between(_points(by_rows), rows)


def _points(by_rows: Mapping[int, float]) -> _Points:
    sizes = sorted(by_rows)  # the feasible batch sizes of IV-C
    # More rows never take less time, however noisy the profile.
    return sizes, list(accumulate((by_rows[r] for r in sizes), max))


def _between(points: _Points, rows: int) -> float:
    sizes, times = points
    right = bisect_left(sizes, rows)
    if right < len(sizes) and sizes[right] == rows:
        return times[right]
    if len(sizes) == 1:
        return times[0] * rows / sizes[0]
    # Not in the paper: uneven shares have sizes that no even split has.
    right = min(max(1, right), len(sizes) - 1)
    a, b = sizes[right - 1], sizes[right]
    slope = (times[right] - times[right - 1]) / (b - a)
    seconds = times[right - 1] + slope * (rows - a)
    return max(seconds, times[0] * min(1.0, rows / sizes[0]))


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one step on the slowest device of a stage, by part."""

    teacher: float
    student: float
    all_reduce: float
    # Loading and transfers: the processor's part, and what takes longer than all computing
    exposed: float

    @property
    def seconds(self) -> float:
        return self.teacher + self.student + self.all_reduce + self.exposed


class DeviceKind(NamedTuple):
    """Devices of one type and memory, which are interchangeable (the paper's all are, VI-B)."""

    type: str
    memory: float  # bytes; infinite is no limit


class DeviceTurn(NamedTuple):
    """A device's part of a step, in seconds; the all-reduce is left out."""

    busy: float  # of its processor
    beside: float  # of the longest of its other resources; the step is at least as long
    # From its input until the next stage has its output; counts with a barrier (Fig. 3b)
    relay: float


class StageCosts:
    """Costs of stages, for one batch size, on the devices of a profile."""

    def __init__(
        self, profile: Profile, batch: int, *, sync_norms: bool = True, lead: int = LEAD
    ) -> None:
        """Costs of plans with this lead: sent outputs are kept for so many steps.

        With `sync_norms` the messages of batch norms in shared stages count.
        """
        self.profile, self.batch = profile, batch
        self.sync_norms, self.lead = sync_norms, lead
        self.blocks, self.devices = profile.blocks, len(profile.devices)
        blocks = profile.types[profile.devices[0]]
        # Bytes of a row that line 11 sends across the boundary before each block; none at the ends
        self.crossing = [0.0, *(b.output_bytes for b in blocks[:-1]), 0.0]
        self._gradient = sums([b.gradient_bytes for b in blocks])
        self._fixed = sums([b.fixed_bytes for b in blocks])
        self._row = sums([b.row_bytes for b in blocks])
        self._norms = sums([b.norms if sync_norms else 0 for b in blocks])
        self._summed: dict[tuple[str, int], _Sums] = {}
        self._points = {
            kind: [(_points(b.teacher_s), _points(b.student_s)) for b in every]
            for kind, every in profile.types.items()
        }
        self._links = {kind: profile.link_of(kind) for kind in profile.types}
        limits = profile.memory_bytes or [inf] * self.devices
        # No stage needs more memory, whatever its blocks and rows.
        most = self._fixed[-1] + batch * (self._row[-1] + lead * max(self.crossing))
        # Of each device, in order; memory tells devices apart only where it may be too small
        self.kinds = [
            DeviceKind(kind, inf if memory >= most else memory)
            for kind, memory in zip(profile.devices, limits, strict=True)
        ]

    # Memory, in bytes: Fig. 7's, which the paper reports and does not plan with

    def fixed_bytes(self, first: int, stop: int) -> float:
        """Weights, gradients and optimiser of blocks [first, stop)."""
        return self._fixed[stop] - self._fixed[first]

    def row_bytes(self, first: int, stop: int, *, relays: bool = True) -> float:
        """One row in blocks [first, stop), with outputs under way to the next stage."""
        sent = self.lead * self.crossing[stop] if relays else 0.0
        return self._row[stop] - self._row[first] + sent

    def most_rows(self, first: int, stop: int, memory: float) -> int:
        """Rows that fit into this memory, the batch at most; 0 where the weights do not fit."""
        if memory == inf:
            return self.batch
        left = memory - self.fixed_bytes(first, stop)
        of_row = self.row_bytes(first, stop)
        if left < 0:  # not even the weights
            return 0
        return self.batch if of_row * self.batch <= left else int(left / of_row)

    # Seconds of one device

    def _sums(self, kind: str, rows: int) -> _Sums:
        """Seconds before each boundary, the teacher's and the student's, and of crossing it."""
        if (summed := self._summed.get((kind, rows))) is None:
            link, blocks = self._links[kind], self._points[kind]
            summed = self._summed[kind, rows] = (
                sums([_between(teacher, rows) for teacher, _ in blocks]),
                sums([_between(student, rows) for _, student in blocks]),
                [link.transfer_s(rows * each) if each else 0.0 for each in self.crossing],
            )
        return summed

    def work_s(self, block: int, kind: str, rows: int) -> float:
        """Seconds of computing a block, a lower bound of its `turn`."""
        _, student = self._points[kind][block]
        return self.teacher_s(block, kind, rows) + _between(student, rows)

    def teacher_s(self, block: int, kind: str, rows: int) -> float:
        teacher, _ = self._points[kind][block]
        return _between(teacher, rows)

    def measured(self, block: int, kind: str) -> list[tuple[int, float, float]]:
        """Rows, with the seconds of computing them and of the teacher's part."""
        costs = self.profile.types[kind][block]
        sizes = {*costs.teacher_s, *costs.student_s, self.batch, 1}
        return [
            (r, self.work_s(block, kind, r), self.teacher_s(block, kind, r))
            for r in sorted(sizes)
            if r <= self.batch
        ]

    def parts(
        self, first: int, stop: int, kind: str, rows: int, *, task: bool = False
    ) -> tuple[float, float, float, float, float]:
        """Seconds of a step of blocks [first, stop) with this many rows.

        Returns:
            The teacher's, the student's, those of receiving, of sending and of loading.
        """
        teacher, student, crossing = self._sums(kind, rows)
        learned = student[stop] - student[first]
        if task:  # II-B: a baseline runs the teacher from the images on, and relays nothing
            return teacher[stop], learned, 0.0, 0.0, self.profile.load_s * rows / self.batch
        return (
            teacher[stop] - teacher[first],  # line 10
            learned,  # lines 12, 13 and 16
            crossing[first],  # line 9
            crossing[stop],  # line 11
            0.0 if first else self.profile.load_s * rows / self.batch,  # line 8
        )

    def turn(
        self,
        first: int,
        stop: int,
        kind: str,
        rows: int,
        *,
        decoupled: bool = True,
        task: bool = False,
    ) -> DeviceTurn:
        """A device's part of a step of blocks [first, stop) with this many rows.

        With a barrier (not decoupled) it counts from the arrival of its input.
        """
        taught, learned, came, left, loads = self.parts(first, stop, kind, rows, task=task)
        overlap = self._links[kind].overlap
        own_came, own_loads = (1 - overlap) * came, (1 - self.profile.load_overlap) * loads
        busy = taught + learned + own_came + (1 - overlap) * left + own_loads
        # Lines 9 to 11: only the teacher's blocks delay the next stage.
        relay = taught + own_came + left + own_loads
        if (
            not decoupled
        ):  # line 15: all wait for each other, so nothing overlaps but loading
            return DeviceTurn(busy, loads, relay)
        left *= overlap
        if self.lead == 1:  # the next step waits until the last output has left
            busy += max(0.0, left - learned)
        return DeviceTurn(busy, max(loads, overlap * came, left), relay)

    # A stage

    def all_reduce_s(
        self, first: int, stop: int, types: Collection[str], devices: int
    ) -> float:
        """Seconds of sharing gradients and norms among this many devices of these types."""
        if devices == 1:  # the block is not split, so line 14 shares nothing
            return 0.0
        shared = self._gradient[stop] - self._gradient[first]
        norms = self._norms[stop] - self._norms[first]
        links = [self._links[kind] for kind in types]
        slowest = max(link.all_reduce_s(shared, devices) for link in links)  # line 14
        norm_s = max(link.norm_s(devices) for link in links)
        return self.profile.sharing * (slowest + norms * norm_s)

    def stage_cost(
        self, stage: Stage, *, decoupled: bool = True, task: bool = False
    ) -> StageCost:
        """Cost of a step of a stage, or of a baseline's `task`, with its devices' rows."""
        kinds = [self.profile.devices[d] for d in stage.devices]
        shared = self.all_reduce_s(stage.first, stage.stop, {*kinds}, len(kinds))
        costs = []
        for kind, rows in {*zip(kinds, stage.rows, strict=True)}:
            where = (stage.first, stage.stop, kind, rows)
            taught, learned, *_ = self.parts(*where, task=task)
            turn = self.turn(*where, decoupled=decoupled, task=task)
            # As long as the busiest resource (IV-C: the slowest device sets the throughput)
            seconds = max(turn.busy + shared, turn.beside)
            exposed = seconds - taught - learned - shared
            costs.append(StageCost(taught, learned, shared, exposed))
        return max(costs, key=lambda cost: cost.seconds)

    # Whole plans

    def step_s(self, plan: Plan) -> float:
        """Seconds of a step once the pipeline is full."""
        costs = [self.stage_cost(s, decoupled=plan.decoupled) for s in plan.stages]
        if plan.decoupled:  # Fig. 3c: the slowest stage
            return max(cost.seconds for cost in costs)
        return max(self._latest(plan, costs))  # Fig. 3b: the latest one

    def _latest(self, plan: Plan, costs: list[StageCost]) -> Iterator[float]:
        """Seconds from the barrier (line 15) until each stage is done."""
        relayed = 0.0
        for stage, cost in zip(plan.stages, costs, strict=True):
            yield relayed + cost.seconds  # IV-B: a stage waits for the activation before it
            relayed += max(
                self.turn(stage.first, stage.stop, self.profile.devices[d], rows).relay
                for d, rows in zip(stage.devices, stage.rows, strict=True)
            )

    def ideal_s(self) -> float:
        """Fig. 2's ideal (section III): each part on one device, divided by their number."""
        # Devices that differ add up their rates; the paper's are all of one type.
        return 1 / sum(1 / self._alone_s(kind) for kind in self.profile.devices)

    def _alone_s(self, kind: str) -> float:
        load_s, beside = self.profile.load_s, self.profile.load_overlap
        work = (self.work_s(b, kind, self.batch) for b in range(self.blocks))
        busy = sum(work) + (1 - beside) * load_s
        return max(busy, load_s)

    # Baselines (II-B, VI-C)

    def task(self, block: int, devices: Sequence[int]) -> Stage:
        """A baseline's task: one student block, behind the teacher's blocks up to it."""
        speeds = []
        for device in devices:
            kind = self.profile.devices[device]
            taught, learned, *_ = self.parts(block, block + 1, kind, self.batch, task=True)
            speeds.append(1 / max(1e-12, taught + learned))
        # By speed; IV-A has 64 of 256 rows on each of four equal devices.
        rows = shared_rows(self.batch, speeds)
        return Stage(block, block + 1, tuple(devices), rows, from_data=True)

    def data_parallel_s(self) -> float:
        """Seconds of DP (II-B): a step of each block in turn, each with the teacher before it."""
        if self.devices > self.batch:
            return inf
        everyone = range(self.devices)
        tasks = (self.task(b, everyone) for b in range(self.blocks))
        return sum(self.stage_cost(task, task=True).seconds for task in tasks)

    def own_s(self, block: int, device: int) -> float:
        """Seconds of a block on a device, without the teacher's blocks before it."""
        teacher, student, _ = self._sums(self.profile.devices[device], self.batch)
        stop = block + 1
        return teacher[stop] - teacher[block] + student[stop] - student[block]

    def task_s(self, block: int, device: int) -> float:
        """Seconds of LS (II-B): a step of a block's task on one device with the whole batch."""
        return self.stage_cost(self.task(block, [device]), task=True).seconds


def sums(values: Sequence[float]) -> list[float]:
    """Sums of the values before each boundary, one more than there are values."""
    return list(accumulate(values, initial=0.0))
