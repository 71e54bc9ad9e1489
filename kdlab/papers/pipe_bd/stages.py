"""Plans: stages of consecutive blocks on groups of devices (section IV).

TR, TR+IR and AHD are plans of the same form (Fig. 3):

    TR      every stage has one device                      -> hybrid_plan.relaying()
    IR      one stage with all blocks and all devices       -> hybrid_plan.internal_relaying()
    AHD     the best plan of hybrid_plan.py                 -> Stage by Stage
    DP, LS  one plan for each block                         -> block_cost.StageCosts.task()

The devices of a stage share the rows of every batch, and gradients are averaged by rows. Rows that
do not divide are shared unevenly; the authors' code trains 255 of 256 rows on three devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kdlab.papers.shares import shared_rows

# Send buffers: one is under way while the next is filled. Not in the paper, whose Algorithm 1 sets
# no bound on how far a stage runs ahead.
LEAD = 2


@dataclass(frozen=True, slots=True)
class Stage:
    """Blocks [first, stop) trained by `devices`, of which device k has `rows[k]` of a batch."""

    first: int
    stop: int
    devices: tuple[int, ...]  # several: split along the batch dimension (IV-C, Fig. 3d)
    rows: tuple[int, ...]
    # Line 8: it loads the data. A baseline's, whose `first` is not 0, runs the teacher's blocks
    # before that, too (II-B: redundant teacher execution).
    from_data: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop:
            raise ValueError(f"a stage of blocks {self.first} to {self.stop}: it has none")
        if len(self.devices) != len(self.rows) or not self.devices:
            raise ValueError(
                f"{len(self.devices)} devices and rows for {len(self.rows)}: each device "
                "needs its rows"
            )
        if min(self.rows) < 1:
            raise ValueError(
                f"rows {self.rows} for devices {self.devices}: every device needs a row; "
                "the batch is smaller than the group"
            )

    @property
    def blocks(self) -> range:
        return range(self.first, self.stop)

    def interval(self, device: int) -> tuple[int, int]:
        """Rows [start, stop) of the batch for this device."""
        at = self.devices.index(device)
        start = sum(self.rows[:at])
        return start, start + self.rows[at]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline: consecutive blocks in stages, every device in one stage."""

    batch: int
    stages: tuple[Stage, ...]
    decoupled: bool = True  # DPU (IV-B); else all devices wait before they update (line 15)
    lead: int = LEAD  # steps a stage may be ahead of the next

    def __post_init__(self) -> None:
        expected, used = self.stages[0].first, set[int]()
        for number, stage in enumerate(self.stages):
            if stage.first != expected:  # IV-C: the workload goes out in contiguous blocks
                raise ValueError(
                    f"a stage begins at block {stage.first}, expected {expected}: blocks "
                    "stand in order, each in one stage"
                )
            if sum(stage.rows) != self.batch:
                raise ValueError(
                    f"rows {stage.rows} of blocks {stage.first} to {stage.stop - 1} are "
                    f"{sum(stage.rows)}, and the batch is {self.batch}"
                )
            if used & set(stage.devices):
                raise ValueError(f"devices {used & set(stage.devices)} are in two stages")
            if stage.from_data != (number == 0):  # lines 8 and 9
                raise ValueError("the first stage reads the data, and no other")
            used |= set(stage.devices)
            expected = stage.stop

    @property
    def blocks(self) -> range:
        """Blocks whose students are trained."""
        return range(self.stages[0].first, self.stages[-1].stop)

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(d for stage in self.stages for d in stage.devices)

    def stage_of(self, device: int) -> int:
        """Number of a device's stage; raises ValueError where it has none."""
        for number, stage in enumerate(self.stages):
            if device in stage.devices:
                return number
        raise ValueError(f"device {device} is in no stage of the plan")

    def of_batch(self, batch: int) -> "Plan":
        """The plan for a batch of another size, such as an epoch's last.

        Raises:
            ValueError: a group of devices is larger than the batch.
        """
        if batch == self.batch:
            return self
        # In the same proportions, so that no device waits longer for another than before
        stages = [replace(s, rows=shared_rows(batch, s.rows)) for s in self.stages]
        return replace(self, batch=batch, stages=tuple(stages))


def pipeline(
    batch: int, cuts: Sequence[int], widths: Sequence[int], *, decoupled: bool = True
) -> Plan:
    """Plan of stages with these numbers of devices, in order.

    `cuts` are one past the last block of each stage; the last is the number of blocks.
    """
    ends = list(accumulate(widths))
    stages = []
    for first, stop, width, end in zip([0, *cuts[:-1]], cuts, widths, ends, strict=True):
        devices = tuple(range(end - width, end))
        rows = shared_rows(batch, [1] * width)  # evenly, as the authors' code splits
        stages.append(Stage(first, stop, devices, rows, from_data=first == 0))
    return Plan(batch, tuple(stages), decoupled)
