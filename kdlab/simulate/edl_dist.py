"""EDL-Dist on a simulated clock: the same reader and lease machines as in a real run.

Only their surroundings are simulated: teachers that need size / t_t seconds for a part, one part
after the other; links with a latency and a bandwidth; students that need batch / t_s seconds for
a step, alone or in step with each other; machines that come and go. So the throughput of a plan,
and what the schedule does, is known before a machine is rented. Rules, thresholds and part sizes
are the defaults of a run.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, Spec
from kdlab.papers.edl_dist.hybrid_schedule import Policy
from kdlab.simulate.kind import SimulationSpec
from kdlab.simulate.mishaps import Behaviour
from kdlab.simulate.profile import RateProfile

_POSITIVE = Range(ge=1)


@dataclass(frozen=True, kw_only=True)
class Fleet(Spec):
    """Teachers of one kind."""

    teacher: RateProfile
    count: Annotated[int, _POSITIVE] = 1


@dataclass(frozen=True, kw_only=True)
class PoolCase(Spec):
    """One row of a table: students of one kind with teachers of one kind.

    more: teachers of other kinds.
    batch, steps, order: of this case, where they differ from the table's.
    published: the paper's number for EDL-Dist, in the unit of the table.
    n_training, online: the paper's numbers for its baselines.
    evidence: `predicted` from rates that were measured apart; `fitted` where a rate was
        taken from this row; `bound` where the result is the student's rate, an input.
    """

    name: str
    student: RateProfile
    teacher: RateProfile
    students: Annotated[int, _POSITIVE] = 1
    teachers: Annotated[int, _POSITIVE] = 1
    more: tuple[Fleet, ...] = ()
    batch: Annotated[int, _POSITIVE] | None = None
    steps: Annotated[int, Range(ge=10)] | None = None
    order: Literal["any", "strict"] | None = None
    evidence: Literal["predicted", "fitted", "bound"] = "predicted"
    published: Annotated[float, POSITIVE] | None = None
    n_training: Annotated[float, POSITIVE] | None = None
    online: Annotated[float, POSITIVE] | None = None


@register("simulate/edl_dist")
@dataclass(frozen=True, kw_only=True)
class EdlDist(SimulationSpec, Behaviour):
    """A table or a plan: each case is simulated by itself.

    unit: samples_per_second of all students together, or days for `images`.
    images: samples of the whole training, for days.
    batch: samples of a student's batch.
    deadline_s: for one request, as in a run.
    lt, ut: thresholds in batches; null takes the defaults of a run.
    order: of batches, as in a run; students that train in step are always strict.
    in_step: the students are ranks of one group: all wait for the slowest.
    link_mbps: megabits/s of each teacher's link; null is no limit.
    student_mbps: megabits/s of each student's link, shared by its teachers.
    bytes_in, bytes_out: of a sample on the way to a teacher, and of its soft label back.
    steps: simulated steps of each student, after a warm-up of a fifth as many.
    calibration: published numbers from which the rates were taken: they are no evidence.
    """

    cases: tuple[PoolCase, ...]
    unit: Literal["samples_per_second", "days"] = "samples_per_second"
    images: Annotated[float, POSITIVE] | None = None
    batch: Annotated[int, _POSITIVE] = 32
    deadline_s: Annotated[float, POSITIVE] = 30.0
    lt: Annotated[float, NOT_NEGATIVE] | None = None
    ut: Annotated[float, Range(ge=2)] | None = None
    per_teacher: Annotated[int, _POSITIVE] = 2
    policy: Policy = "guarded"
    order: Literal["any", "strict"] = "any"
    in_step: bool = False
    link_mbps: Annotated[float, POSITIVE] | None = None
    student_mbps: Annotated[float, POSITIVE] | None = None
    bytes_in: Annotated[float, NOT_NEGATIVE] = 8.0
    bytes_out: Annotated[float, NOT_NEGATIVE] = 4000.0
    latency_s: Annotated[float, NOT_NEGATIVE] = 0.001
    steps: Annotated[int, Range(ge=10)] = 400
    calibration: str = ""

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        if not self.cases:
            yield Fault("cases", "is empty; give at least one")
        if self.unit == "days" and self.images is None:
            yield Fault("images", "is missing; days need the samples of the whole training")
        if self.lt is not None and self.ut is not None and self.lt >= self.ut:
            yield Fault("lt", f"is {self.lt:g} batches and ut is {self.ut:g}")


def in_unit(spec: EdlDist, samples_per_second: float) -> float:
    """Convert a throughput to the unit of the table."""
    if spec.unit == "samples_per_second":
        return samples_per_second
    assert spec.images is not None
    return spec.images / samples_per_second / 86_400
