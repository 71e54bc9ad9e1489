"""What a step costs: the profile of the blocks, and the time and memory of a stage.

The paper profiles each block at each feasible batch size (section IV-C) and does not print
its cost model. Here one step of a stage on one of its devices takes

    teacher + student + all-reduce + exposed transfer

with the rows the device has. A transfer is exposed as far as the student's work does not
cover it; of a device that copies with its own processor (`overlap` below 1) the rest is
exposed too, at both ends. So it depends on the block boundary and on the device's rows,
not on how wide the neighbouring stage is.

A pipeline's step is that of its slowest stage with DPU (Fig. 3c). With a barrier every
step waits for the relay from the first device on (Fig. 3b): the teachers before stand in
the way of each student, and the step is that of the latest.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Any

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
    """Between any two devices."""

    bytes_per_s: float = inf
    latency_s: float = 0.0
    overlap: float = 1.0  # share of a transfer that costs the devices' processors nothing
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
    devices: Sequence[str]  # type of each device; groups are neighbours in this order
    link: DeviceLink = DeviceLink()  # between devices
    load_s: float = 0.0  # seconds to load a whole batch, where that does not overlap
    memory_bytes: Sequence[float] | None = None  # of each device; None is no limit

    @property
    def blocks(self) -> int:
        return len(self.types[self.devices[0]])

    @cached_property
    def speeds(self) -> dict[str, float]:
        """Rows per second of each type through all blocks, at the most rows profiled."""
        found = {}
        for name, blocks in self.types.items():
            rows = max(blocks[0].teacher_s)
            busy = sum(at(b.teacher_s, rows) + at(b.student_s, rows) for b in blocks)
            found[name] = rows / max(busy, 1e-12)
        return found


def at(by_rows: Mapping[int, float], rows: int) -> float:
    """Seconds for so many rows, between and beyond the profiled ones along a line."""
    if rows in by_rows:
        return by_rows[rows]
    known = sorted(by_rows)
    if len(known) == 1:
        return by_rows[known[0]] * rows / known[0]
    right = min(max(1, bisect_left(known, rows)), len(known) - 1)
    a, b = known[right - 1], known[right]
    slope = (by_rows[b] - by_rows[a]) / (b - a)
    return max(0.0, by_rows[a] + slope * (rows - a))


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one step on the slowest device of a stage, and what they are made of."""

    teacher: float
    student: float
    all_reduce: float
    exposed: float

    @property
    def seconds(self) -> float:
        return self.teacher + self.student + self.all_reduce + self.exposed


@dataclass(frozen=True, slots=True)
class _Member:
    """Devices of a group that are alike; sums stand over the blocks before a boundary."""

    rows: int
    teacher: list[float]
    student: list[float]
    work: list[float]  # both
    row_bytes: list[float]
    copied: list[float]  # of a transfer over each boundary: what the processor does
    covered: list[float]  # of it: what can go on under the student's work
    load_s: float
    memory: float

    def exposed(self, first: int, stop: int) -> float:
        under = self.covered[stop] - (self.student[stop] - self.student[first])
        return self.copied[first] + self.copied[stop] + max(0.0, under)


@dataclass(frozen=True, slots=True)
class _Group:
    devices: tuple[int, ...]
    rows: tuple[int, ...]
    members: tuple[_Member, ...]


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
        self._output = [0.0, *(b.output_bytes for b in blocks[:-1]), 0.0]
        self._gradient = _sums([b.gradient_bytes for b in blocks])
        self._fixed = _sums([b.fixed_bytes for b in blocks])
        self._norms = _sums([b.norms if sync_norms else 0 for b in blocks])
        self._groups: dict[tuple[int, int], _Group] = {}
        self._alike: dict[tuple[Any, ...], tuple[tuple[int, ...], tuple[_Member, ...]]] = {}

    def group(self, start: int, end: int) -> _Group | None:
        """Devices [start, end) and their rows; None when the batch has not enough."""
        if self.batch < end - start:
            return None
        if (start, end) in self._groups:
            return self._groups[start, end]
        names = tuple(self.profile.devices[start:end])
        limits: tuple[float, ...] = ()
        if self.profile.memory_bytes is not None:
            limits = tuple(self.profile.memory_bytes[start:end])
        if (names, limits) not in self._alike:
            self._alike[names, limits] = self._members(names, limits)
        group = _Group(tuple(range(start, end)), *self._alike[names, limits])
        return self._groups.setdefault((start, end), group)

    def _members(
        self, names: tuple[str, ...], limits: tuple[float, ...]
    ) -> tuple[tuple[int, ...], tuple[_Member, ...]]:
        profile, link = self.profile, self.profile.link
        rows = shared_rows(self.batch, [profile.speeds[name] for name in names])
        members: dict[tuple[str, int], _Member] = {}
        for name, own, limit in zip(names, rows, limits or [inf] * len(rows), strict=True):
            before = members.get((name, own))
            if before is not None and before.memory <= limit:
                continue
            blocks = profile.types[name]
            teacher = _sums([at(b.teacher_s, own) for b in blocks])
            student = _sums([at(b.student_s, own) for b in blocks])
            over = [
                0.0 if not size else link.transfer_s(own * size) for size in self._output
            ]
            members[name, own] = _Member(
                rows=own,
                teacher=teacher,
                student=student,
                work=[t + s for t, s in zip(teacher, student, strict=True)],
                row_bytes=_sums([b.row_bytes for b in blocks]),
                copied=[(1 - link.overlap) * seconds for seconds in over],
                covered=[link.overlap * seconds for seconds in over],
                load_s=profile.load_s * own / self.batch,
                memory=limit,
            )
        return rows, tuple(members.values())

    def work(self, first: int, stop: int, group: _Group) -> float:
        """Seconds of computing alone: grows with every block, a bound for `seconds`."""
        if len(group.members) == 1:  # asked very often
            work = group.members[0].work
            return work[stop] - work[first]
        return max(m.work[stop] - m.work[first] for m in group.members)

    def fits(self, first: int, stop: int, group: _Group) -> bool:
        if self.profile.memory_bytes is None:
            return True
        fixed = self._fixed[stop] - self._fixed[first]
        sent = self.lead * self._output[stop]
        return all(
            fixed + m.rows * (m.row_bytes[stop] - m.row_bytes[first] + sent) <= m.memory
            for m in group.members
        )

    def seconds(self, first: int, stop: int, group: _Group) -> float:
        """Seconds of one step of blocks [first, stop) on the slowest device of a group."""
        slowest = 0.0
        for m in group.members:
            busy = m.work[stop] - m.work[first] + m.exposed(first, stop)
            slowest = max(slowest, busy if first else busy + m.load_s)
        return slowest + self._all_reduce(first, stop, group)

    def _all_reduce(self, first: int, stop: int, group: _Group) -> float:
        shared = self._gradient[stop] - self._gradient[first]
        link, devices = self.profile.link, len(group.devices)
        norms = self._norms[stop] - self._norms[first]
        return link.all_reduce_s(shared, devices) + norms * link.norm_s(devices)

    def parts(
        self, first: int, stop: int, group: _Group, *, alone: bool = False
    ) -> StageCost:
        """What `seconds` is made of.

        `alone`: of a baseline's task, which runs the teacher from the images and relays nothing.
        """
        all_reduce, begin = self._all_reduce(first, stop, group), 0 if alone else first
        costs = [
            StageCost(
                m.teacher[stop] - m.teacher[begin] + (0.0 if begin else m.load_s),
                m.student[stop] - m.student[first],
                all_reduce,
                0.0 if alone else m.exposed(first, stop),
            )
            for m in group.members
        ]
        return max(costs, key=lambda cost: cost.seconds)

    def of_stage(self, stage: Stage) -> StageCost:
        """Cost of a stage whose devices and rows are those of `group`."""
        group = self.group(stage.devices[0], stage.devices[-1] + 1)
        assert group is not None
        return self.parts(stage.first, stage.stop, group)

    # Bounds for a search

    @cached_property
    def _device_seconds(self) -> list[float]:
        """The least that the blocks before each boundary take of all devices together."""
        groups = {
            id(group.members): group
            for start in range(self.devices)
            for end in range(start + 1, self.devices + 1)
            if (group := self.group(start, end)) is not None
        }
        least = [
            min(
                len(g.devices) * min(m.work[b + 1] - m.work[b] for m in g.members)
                for g in groups.values()
            )
            for b in range(self.blocks)
        ]
        return _sums(least)

    def min_stop(self, device_seconds: float) -> int:
        """The fewest blocks that must be done when only so much time is left for the rest."""
        total = self._device_seconds[-1]
        return bisect_left(self._device_seconds, total - device_seconds * (1 + 1e-9))

    # Whole plans

    def step_s(self, plan: Plan) -> float:
        """Seconds of a step once the pipeline is full."""
        costs = [self.of_stage(stage) for stage in plan.stages]
        if plan.decoupled:
            return max(cost.seconds for cost in costs)
        return max(self._latest(plan, costs))

    def _latest(self, plan: Plan, costs: list[StageCost]) -> Iterator[float]:
        """When each stage is done, counted from the barrier."""
        relayed = 0.0
        for stage, cost in zip(plan.stages, costs, strict=True):
            relayed += cost.teacher
            yield relayed + cost.student + cost.all_reduce + cost.exposed
            if stage.stop < self.blocks:
                rows = max(stage.rows)
                relayed += self.profile.link.transfer_s(rows * self._output[stage.stop])

    def ideal_s(self) -> float:
        """Each part alone on one device with the whole batch, shared by all (Fig. 2)."""
        speed = 0.0
        for name in self.profile.devices:
            blocks = self.profile.types[name]
            alone = sum(
                at(b.teacher_s, self.batch) + at(b.student_s, self.batch) for b in blocks
            )
            speed += 1 / (alone + self.profile.load_s)
        return 1 / speed

    def data_parallel_s(self) -> float:
        """DP: one step of each block, block after block, teachers before it run again."""
        if self.group(0, self.devices) is None:
            return inf
        return sum(self._task(b, 0, self.devices).seconds for b in range(self.blocks))

    def task_s(self, block: int, device: int) -> float:
        """LS: one step of a block's task on one device, with the whole batch."""
        return self._task(block, device, device + 1).seconds

    def of_task(self, stage: Stage) -> StageCost:
        """Cost of a baseline's task, which runs the teacher's blocks before it again."""
        return self._task(stage.first, stage.devices[0], stage.devices[-1] + 1)

    def _task(self, block: int, start: int, end: int) -> StageCost:
        group = self.group(start, end)
        assert group is not None
        return self.parts(block, block + 1, group, alone=True)


def _sums(values: Sequence[float]) -> list[float]:
    """What stands before each boundary: one more than there are values."""
    return list(accumulate(values, initial=0.0))
