"""A plan held against what its steps took, and another one where that is better (beyond the paper).

The paper plans once, from a profile. A profile is measured without the pipeline: neighbours that
wait, share memory and caches, or meet in every norm are not in it. So what each device took for
its teachers, its students and its meetings is measured while it trains; the costs of the blocks
are scaled to that, where they were trained and on the devices they were trained on; and the plans
are compared again. A plan that was carried out counts as what it took, not as what is predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts, at
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan, NoPlan, programme
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.stages import Stage

GAIN = 0.05  # a plan must be better by more than steps differ from epoch to epoch
_MOST_CHANGES = 3
_LEAST = 1e-3  # of what meetings take over what is predicted


@dataclass(frozen=True, slots=True)
class DeviceTook:
    """Mean seconds of a device's parts in a step of some epoch."""

    device: int
    teacher: float
    student: float  # forward, loss, backward and update
    # All-reduces with waiting for the others of its stage; 0 where it has a stage of its own
    all_reduce: float


def device_took(device: int, spans: Sequence[Span]) -> DeviceTook:
    """Means over the steps of a device's spans."""
    steps = len({span.step for span in spans})

    def mean(*parts: str) -> float:
        return sum(s.end - s.begin for s in spans if s.part in parts) / steps

    return DeviceTook(
        device=device,
        teacher=mean("teacher"),
        student=mean("student", "backward", "update"),
        all_reduce=mean("all_reduce"),
    )


@dataclass(slots=True)
class Replanning:
    """Decides between epochs whether to go on with another plan."""

    profile: Profile  # as it was measured before the training
    decoupled: bool
    # Plans that were carried out, by their stages: with their costs, and what a step took
    known: dict[tuple[Stage, ...], tuple[ExecutionPlan, StageCosts, float]] = field(
        default_factory=dict
    )
    changes: int = 0  # of the plan so far
    sharing: float | None = None  # of meetings, when last seen; None is the profile's

    def after_epoch(
        self,
        carried_out: ExecutionPlan,
        costs: StageCosts,
        took: Sequence[DeviceTook],
        step_s: float,
    ) -> tuple[ExecutionPlan, StageCosts] | None:
        """A better plan with the costs it is chosen by; None is to go on.

        Args:
            carried_out: the plan of the epoch: one pipeline.
            costs: that it was chosen by.
            took: what each device took in a step.
            step_s: seconds of a step, waiting included.
        """
        (plan,) = carried_out.plans
        self.known[plan.stages] = carried_out, costs, step_s
        before, own, took_s = min(self.known.values(), key=lambda known: known[2])
        if took_s < step_s * (1 - GAIN):  # one that was tried is better: back to it
            why = (
                f"{before.why}; again, since steps of the plan in between took "
                f"{1e3 * step_s:.1f} ms"
            )
            return replace(before, predicted_s=took_s, why=why), own
        if self.changes >= _MOST_CHANGES:
            return None
        now = costs.of(self._corrected(carried_out, costs, took))
        try:
            found = programme(carried_out.name, now, decoupled=self.decoupled)
        except NoPlan:
            return None
        (other,) = found.plans
        # What a step takes beyond what is known of its parts it will take with any plan.
        expected = found.predicted_s * max(1.0, step_s / now.step_s(plan))
        if other.stages in self.known or expected >= step_s * (1 - GAIN):
            return None
        self.changes += 1
        why = (
            f"{found.why}, by what steps took: {1e3 * step_s:.1f} ms with the plan before, "
            f"{1e3 * carried_out.predicted_s:.1f} ms were predicted"
        )
        return replace(found, predicted_s=expected, why=why), now

    def _corrected(
        self, carried_out: ExecutionPlan, costs: StageCosts, took: Sequence[DeviceTook]
    ) -> Profile:
        """The profile with each block scaled to what it took where it was trained."""
        (plan,) = carried_out.plans
        teacher, student = _Factors(), _Factors()
        meetings = list[float]()
        for stage in plan.stages:
            own = [t for t in took if t.device in stage.devices]
            for one in own:
                kind = self.profile.devices[one.device]
                taught, learned = _by_profile(self.profile, stage, one.device)
                learning = one.student
                if len(own) > 1:  # its batch norms meet in the middle of it
                    learning = _learning(one, taught, learned)
                teacher.note(kind, stage.blocks, one.teacher, taught)
                student.note(kind, stage.blocks, learning, learned)
            if (seen := sharing_of(stage, costs, own)) is not None:
                meetings.append(seen)
        if meetings:
            self.sharing = fmean(meetings)
        types = {
            kind: [
                _scaled(block, teacher.of(kind, b), student.of(kind, b))
                for b, block in enumerate(blocks)
            ]
            for kind, blocks in self.profile.types.items()
        }
        sharing = self.profile.sharing if self.sharing is None else self.sharing
        return replace(self.profile, types=types, sharing=sharing)


def sharing_of(stage: Stage, costs: StageCosts, took: Sequence[DeviceTook]) -> float | None:
    """What the meetings of a shared stage took over what the links of the profile say.

    Args:
        stage: of several devices; None of any other.
        costs: of the profile.
        took: what each of its devices took in a step.
    """
    if len(stage.devices) < 2 or len(took) < 2:
        return None
    profile = costs.profile
    kinds = [profile.devices[d] for d in stage.devices]
    predicted = costs.all_reduce_s(stage.first, stage.stop, kinds) / profile.sharing
    if predicted <= 0:
        return None
    met = [
        one.student
        + one.all_reduce
        - _learning(one, *_by_profile(profile, stage, one.device))
        for one in took
    ]
    # Whoever comes last waits least: what is left is the meeting itself.
    return max(min(met) / predicted, _LEAST)


def _by_profile(profile: Profile, stage: Stage, device: int) -> tuple[float, float]:
    """Seconds of the teacher's blocks and of the student's, with the rows of this device."""
    rows = stage.rows[stage.devices.index(device)]
    blocks = [profile.types[profile.devices[device]][b] for b in stage.blocks]
    taught = sum(at(b.teacher_s, rows) for b in blocks)
    return taught, sum(at(b.student_s, rows) for b in blocks)


def _learning(one: DeviceTook, taught: float, learned: float) -> float:
    """The student's own work where norms meet in it: it is off as its teacher's is."""
    return learned * (one.teacher / taught if taught > 0 else 1.0)


@dataclass(slots=True)
class _Factors:
    """What blocks took over what their profile says, by block and type of device."""

    found: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def note(self, kind: str, blocks: Sequence[int], took: float, predicted: float) -> None:
        if predicted <= 0 or took <= 0:
            return
        for block in blocks:
            self.found.setdefault(block, {}).setdefault(kind, []).append(took / predicted)

    def of(self, kind: str, block: int) -> float:
        """The factor of this type; where no device of it trained the block, of those that did."""
        own = self.found.get(block, {})
        values = own.get(kind) or [f for each in own.values() for f in each]
        return fmean(values) if values else 1.0


def _scaled(block: Block, teacher: float, student: float) -> Block:
    def by(times: Mapping[int, float], factor: float) -> dict[int, float]:
        return {rows: factor * seconds for rows, seconds in times.items()}

    return replace(
        block,
        teacher_s=by(block.teacher_s, teacher),
        student_s=by(block.student_s, student),
    )
