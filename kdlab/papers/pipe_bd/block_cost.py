"""What a step costs: the profile of the blocks, and the time and memory of a stage.

The paper profiles each block at each feasible batch size (section IV-C) and does not print
its cost model. Here one step of a stage is that of its slowest device, and of a device

    teacher + student + what of its transfers and its loading its own processor does

with the rows that the device has; then the all-reduce of the stage. Whatever goes on beside the
computing (a link that copies by itself, a loading thread of its own) only counts where it takes
longer than all of that: it is a resource of its own, and a step is as long as the busiest one.
Devices are unlike in three ways: in how fast they compute, in their link, and in their memory.

A pipeline's step is that of its slowest stage with DPU (Fig. 3c). With a barrier every step
waits for the relay from the first device on (Fig. 3b): the teachers before stand in the way of
each student, and the step is that of the latest. What is left out there: that several devices
send to fewer, whose ports take longer than theirs.
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

    teacher_s: Mapping[int, float]  # seconds of the teacher's forward, by rows
    # Seconds of the student's forward, loss, backward and update, by rows
    student_s: Mapping[int, float]
    output_bytes: float = 0.0  # of the teacher's output, per row: what is relayed
    gradient_bytes: float = 0.0  # of the student: what is shared in a group
    fixed_bytes: float = 0.0  # memory of weights, gradients and optimiser
    row_bytes: float = 0.0  # memory of activations and buffers, per row
    # Of the student's batch norms, which a shared stage takes over all its rows
    norms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLink:
    """A device's way to all others: it sends at this rate and receives at this rate."""

    bytes_per_s: float = inf
    latency_s: float = 0.0
    overlap: float = 1.0  # share of a transfer that costs the device's processor nothing
    # Seconds of an all-reduce of next to nothing; None is what the latency says.
    meet_s: float | None = None

    def transfer_s(self, size: float) -> float:
        return self.latency_s + size / self.bytes_per_s

    def all_reduce_s(self, size: float, devices: int) -> float:
        """A ring: each device sends and receives 2 (g - 1) / g of it in 2 (g - 1) turns."""
        if devices == 1:
            return 0.0
        turns = 2 * (devices - 1)
        return turns * (self.latency_s + size / devices / self.bytes_per_s)

    def norm_s(self, devices: int) -> float:
        """A batch norm over a group: one small message in each direction."""
        if devices == 1:
            return 0.0
        return 2 * (self.all_reduce_s(0.0, devices) if self.meet_s is None else self.meet_s)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Measured blocks for each type of device, and the devices in their order."""

    # Blocks by type of device; the same number for each
    types: Mapping[str, Sequence[Block]]
    devices: Sequence[str]  # type of each device
    link: DeviceLink = DeviceLink()  # of a type that `links` does not name
    links: Mapping[str, DeviceLink] = field(default_factory=dict)  # by type of device
    load_s: float = 0.0  # seconds to load a whole batch in one device's process
    # Share of loading that goes on beside the computing: 0 where one core does both
    load_overlap: float = 0.0
    memory_bytes: Sequence[float] | None = None  # of each device; None is no limit
    # What the meetings of a shared stage were seen to take, over what the links say
    sharing: float = 1.0

    @property
    def blocks(self) -> int:
        return len(self.types[self.devices[0]])

    def link_of(self, kind: str) -> DeviceLink:
        return self.links.get(kind, self.link)


def at(by_rows: Mapping[int, float], rows: int) -> float:
    """Seconds for so many rows, between and beyond the profiled ones along a line.

    More rows never take less time, however noisy the profile: a device may leave its time unused.
    Below the fewest rows it is at least their part of the time of these.
    """
    known = sorted(by_rows)
    times = list(accumulate((by_rows[r] for r in known), max))
    if rows in by_rows:
        return times[known.index(rows)]
    if len(known) == 1:
        return times[0] * rows / known[0]
    right = min(max(1, bisect_left(known, rows)), len(known) - 1)
    a, b = known[right - 1], known[right]
    slope = (times[right] - times[right - 1]) / (b - a)
    seconds = times[right - 1] + slope * (rows - a)
    return max(seconds, times[0] * min(1.0, rows / known[0]))


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one step on the slowest device of a stage, and what they are made of."""

    teacher: float
    student: float
    all_reduce: float
    # Loading and transfers: what the device's processor does, and what takes longer than all of
    # the computing
    exposed: float

    @property
    def seconds(self) -> float:
        return self.teacher + self.student + self.all_reduce + self.exposed


class DeviceKind(NamedTuple):
    """Devices that are alike in all that counts."""

    type: str
    memory: float  # bytes; infinite is no limit


class DeviceTurn(NamedTuple):
    """A device's part of a step, in seconds; the all-reduce is left out."""

    busy: float  # what its processor does
    beside: float  # what goes on beside that: the step is at least as long
    # From its input until the next stage has its output: what a barrier makes count
    relay: float


class StageCosts:
    """Costs of stages, for one batch size, on the devices of a profile."""

    def __init__(
        self, profile: Profile, batch: int, *, sync_norms: bool = True, lead: int = LEAD
    ) -> None:
        """Costs for plans with this lead, in steps: each keeps what it has sent so long.

        With `sync_norms` the messages of batch norms in shared stages count.
        """
        self.profile, self.batch = profile, batch
        self.sync_norms, self.lead = sync_norms, lead
        self.blocks, self.devices = profile.blocks, len(profile.devices)
        blocks = profile.types[profile.devices[0]]
        # What crosses the boundary before each block; nothing at both ends.
        self.crossing = [0.0, *(b.output_bytes for b in blocks[:-1]), 0.0]
        self._gradient = sums([b.gradient_bytes for b in blocks])
        self._fixed = sums([b.fixed_bytes for b in blocks])
        self._row = sums([b.row_bytes for b in blocks])
        self._norms = sums([b.norms if sync_norms else 0 for b in blocks])
        self._summed: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
        limits = profile.memory_bytes or [inf] * self.devices
        # No stage needs more, whatever its blocks and rows.
        most = self._fixed[-1] + batch * (self._row[-1] + lead * max(self.crossing))
        # Of each device, in their order; memory counts where not everything fits
        self.kinds = [
            DeviceKind(kind, inf if memory >= most else memory)
            for kind, memory in zip(profile.devices, limits, strict=True)
        ]

    # Memory, in bytes

    def fixed_bytes(self, first: int, stop: int) -> float:
        """Weights, gradients and optimiser of blocks [first, stop)."""
        return self._fixed[stop] - self._fixed[first]

    def row_bytes(self, first: int, stop: int, *, relays: bool = True) -> float:
        """One row in blocks [first, stop), with what is on its way to the next stage."""
        sent = self.lead * self.crossing[stop] if relays else 0.0
        return self._row[stop] - self._row[first] + sent

    def most_rows(self, first: int, stop: int, memory: float) -> int:
        """Rows that fit into so much memory, the batch at most; 0 where the weights do not."""
        if memory == inf:
            return self.batch
        left = memory - self.fixed_bytes(first, stop)
        of_row = self.row_bytes(first, stop)
        if left < 0:
            return 0
        return self.batch if of_row * self.batch <= left else int(left / of_row)

    # Seconds of one device

    def _sums(self, kind: str, rows: int) -> tuple[list[float], list[float]]:
        """Seconds of the teacher's and of the student's blocks before each boundary."""
        found = self._summed.get((kind, rows))
        if found is None:
            blocks = self.profile.types[kind]
            found = self._summed[kind, rows] = (
                sums([at(b.teacher_s, rows) for b in blocks]),
                sums([at(b.student_s, rows) for b in blocks]),
            )
        return found

    def work_s(self, block: int, kind: str, rows: int) -> float:
        """Seconds of computing a block alone: what no `turn` is below."""
        return self.teacher_s(block, kind, rows) + at(
            self.profile.types[kind][block].student_s, rows
        )

    def teacher_s(self, block: int, kind: str, rows: int) -> float:
        return at(self.profile.types[kind][block].teacher_s, rows)

    def measured(self, block: int, kind: str) -> list[tuple[int, float, float]]:
        """Rows, the seconds of computing them and of the teacher's part; lines between these."""
        own = self.profile.types[kind][block]
        some = {*own.teacher_s, *own.student_s, self.batch, 1}
        return [
            (r, self.work_s(block, kind, r), self.teacher_s(block, kind, r))
            for r in sorted(some)
            if r <= self.batch
        ]

    def parts(
        self, first: int, stop: int, kind: str, rows: int, *, task: bool = False
    ) -> tuple[float, float, float, float, float]:
        """Seconds of a step of blocks [first, stop) with so many rows, by what they are for.

        A baseline's task runs the teacher from the images on, and relays nothing.

        Returns:
            The teacher, the student, the transfers of its input and of its output, loading.
        """
        teacher, student = self._sums(kind, rows)
        learned = student[stop] - student[first]
        if task:
            return teacher[stop], learned, 0.0, 0.0, self.profile.load_s * rows / self.batch
        link, came, left = (
            self.profile.link_of(kind),
            self.crossing[first],
            self.crossing[stop],
        )
        return (
            teacher[stop] - teacher[first],
            learned,
            link.transfer_s(rows * came) if came else 0.0,
            link.transfer_s(rows * left) if left else 0.0,
            0.0 if first else self.profile.load_s * rows / self.batch,
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
        """A device's part of a step of blocks [first, stop) with so many rows.

        With a barrier (not decoupled) it counts from when its input has come.
        """
        taught, learned, came, left, loads = self.parts(first, stop, kind, rows, task=task)
        overlap = self.profile.link_of(kind).overlap
        own_came, own_loads = (1 - overlap) * came, (1 - self.profile.load_overlap) * loads
        busy = taught + learned + own_came + (1 - overlap) * left + own_loads
        # Algorithm 1, line 9 to 11: the teacher's blocks alone stand before the next stage
        relay = taught + own_came + left + own_loads
        if not decoupled:  # line 15: all wait for each other, so nothing goes on beside it
            return DeviceTurn(busy, loads, relay)
        left *= overlap
        if self.lead == 1:  # the next step waits until the last output has left
            busy += max(0.0, left - learned)
        return DeviceTurn(busy, max(loads, overlap * came, left), relay)

    # A stage

    def all_reduce_s(
        self, first: int, stop: int, types: Collection[str], devices: int
    ) -> float:
        """Seconds of sharing gradients and norms among so many devices of these types."""
        if devices == 1:
            return 0.0
        shared = self._gradient[stop] - self._gradient[first]
        norms = self._norms[stop] - self._norms[first]
        links = [self.profile.link_of(kind) for kind in types]
        slowest = max(link.all_reduce_s(shared, devices) for link in links)
        norm_s = max(link.norm_s(devices) for link in links)
        return self.profile.sharing * (slowest + norms * norm_s)

    def of_stage(
        self, stage: Stage, *, decoupled: bool = True, task: bool = False
    ) -> StageCost:
        """What a step of a stage takes with the rows that its devices have; or of a `task`."""
        kinds = [self.profile.devices[d] for d in stage.devices]
        shared = self.all_reduce_s(stage.first, stage.stop, {*kinds}, len(kinds))
        costs = []
        for kind, rows in {*zip(kinds, stage.rows, strict=True)}:
            where = (stage.first, stage.stop, kind, rows)
            taught, learned, *_ = self.parts(*where, task=task)
            turn = self.turn(*where, decoupled=decoupled, task=task)
            seconds = max(turn.busy + shared, turn.beside)
            exposed = seconds - taught - learned - shared
            costs.append(StageCost(taught, learned, shared, exposed))
        return max(costs, key=lambda cost: cost.seconds)

    # Whole plans

    def step_s(self, plan: Plan) -> float:
        """Seconds of a step once the pipeline is full."""
        costs = [self.of_stage(s, decoupled=plan.decoupled) for s in plan.stages]
        if plan.decoupled:
            return max(cost.seconds for cost in costs)
        return max(self._latest(plan, costs))

    def _latest(self, plan: Plan, costs: list[StageCost]) -> Iterator[float]:
        """When each stage is done, counted from the barrier."""
        relayed = 0.0
        for stage, cost in zip(plan.stages, costs, strict=True):
            yield relayed + cost.seconds
            relayed += max(
                self.turn(stage.first, stage.stop, self.profile.devices[d], rows).relay
                for d, rows in zip(stage.devices, stage.rows, strict=True)
            )

    def ideal_s(self) -> float:
        """Each part alone on one device with the whole batch, shared by all (Fig. 2)."""
        return 1 / sum(1 / self._alone_s(kind) for kind in self.profile.devices)

    def _alone_s(self, kind: str) -> float:
        load_s, beside = self.profile.load_s, self.profile.load_overlap
        alone = (self.work_s(b, kind, self.batch) for b in range(self.blocks))
        busy = sum(alone) + (1 - beside) * load_s
        return max(busy, load_s)

    # Baselines

    def task(self, block: int, devices: Sequence[int]) -> Stage:
        """A baseline's task: one student block, behind the teacher's blocks up to it.

        Rows are in proportion to the devices' speed at it.
        """
        speeds = []
        for device in devices:
            kind = self.profile.devices[device]
            taught, learned, *_ = self.parts(block, block + 1, kind, self.batch, task=True)
            speeds.append(1 / max(1e-12, taught + learned))
        rows = shared_rows(self.batch, speeds)
        return Stage(block, block + 1, tuple(devices), rows, from_data=True)

    def data_parallel_s(self) -> float:
        """DP: one step of each block, block after block, teachers before it run again."""
        if self.devices > self.batch:
            return inf
        everyone = range(self.devices)
        tasks = (self.task(b, everyone) for b in range(self.blocks))
        return sum(self.of_stage(task, task=True).seconds for task in tasks)

    def own_s(self, block: int, device: int) -> float:
        """A block's own work on a device, the teacher's blocks before it left out."""
        teacher, student = self._sums(self.profile.devices[device], self.batch)
        stop = block + 1
        return teacher[stop] - teacher[block] + student[stop] - student[block]

    def task_s(self, block: int, device: int) -> float:
        """LS: one step of a block's task on one device, with the whole batch."""
        return self.of_stage(self.task(block, [device]), task=True).seconds


def sums(values: Sequence[float]) -> list[float]:
    """What stands before each boundary: one more than there are values."""
    return list(accumulate(values, initial=0.0))
