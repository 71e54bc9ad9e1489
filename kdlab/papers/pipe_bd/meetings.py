"""What the meetings of a shared stage take, by what its devices took (beyond the paper).

A profile is measured without the pipeline: what devices wait for each other in every norm is not in
it. So all blocks are shared for some steps, and what that takes beyond the devices' own work is
held against what the links say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.stages import Stage

_LEAST = 1e-3  # of what meetings take over what is predicted


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Mean seconds of a device's parts in a step."""

    device: int
    teacher: float
    student: float  # forward, loss, backward and update
    # All-reduces with waiting for the others of its stage; 0 where it has a stage of its own
    all_reduce: float


def device_took(device: int, spans: Sequence[Span]) -> DeviceTimes:
    """Means over the steps of a device's spans."""
    steps = len({span.step for span in spans})

    def mean(*parts: str) -> float:
        return sum(s.end - s.begin for s in spans if s.part in parts) / steps

    return DeviceTimes(
        device=device,
        teacher=mean("teacher"),
        student=mean("student", "backward", "update"),
        all_reduce=mean("all_reduce"),
    )


def sharing_of(
    stage: Stage, costs: StageCosts, took: Sequence[DeviceTimes]
) -> float | None:
    """What the meetings of a shared stage took over what the links of the profile say.

    Args:
        stage: of several devices; None of any other.
        costs: of the profile.
        took: what each of its devices took in a step.
    """
    if len(stage.devices) < 2 or len(took) < 2:
        return None
    profile = costs.profile
    kinds = {profile.devices[d] for d in stage.devices}
    predicted = (
        costs.all_reduce_s(stage.first, stage.stop, kinds, len(stage.devices))
        / profile.sharing
    )
    if predicted <= 0:
        return None
    met = []
    for one in took:
        rows = stage.rows[stage.devices.index(one.device)]
        kind = profile.devices[one.device]
        taught, learned, *_ = costs.parts(stage.first, stage.stop, kind, rows)
        # Where norms meet in the student's own work, it is off as its teacher's is.
        off = one.teacher / taught if taught > 0 else 1.0
        met.append(one.student + one.all_reduce - learned * off)
    # Whoever comes last waits least: what is left is the meeting itself.
    return max(min(met) / predicted, _LEAST)
