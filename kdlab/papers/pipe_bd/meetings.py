"""Measured time of the meetings in a shared stage, over the predicted time (beyond the paper).

A profile is measured without the pipeline, so it does not have the time that devices wait for each
other in every norm. All blocks are shared for some steps, and the time beyond the devices' own work
is compared with the links' prediction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kdlab.papers.pipe_bd.block_cost import StageCosts
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.stages import Stage

_LEAST = 1e-3  # of the factor


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Mean seconds of a device's parts in a step."""

    device: int
    teacher: float  # line 10
    student: float  # lines 12, 13 and 16: forward, loss, backward and update
    # Line 14, waiting for the other devices included; 0 in a stage of one device
    all_reduce: float


def device_took(device: int, spans: Sequence[Span]) -> DeviceTimes:
    """Mean times of a device over the steps of its spans."""
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
    """Factor of the meetings' measured over their predicted time; None where nothing meets.

    Args:
        stage: the shared stage.
        costs: of the profile.
        took: mean times of each of its devices.
    """
    if len(stage.devices) < 2 or len(took) < 2:  # line 14 has nothing to share
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
    for times in took:
        rows = stage.rows[stage.devices.index(times.device)]
        kind = profile.devices[times.device]
        taught, learned, *_ = costs.parts(stage.first, stage.stop, kind, rows)
        # The student's own work differs from its profile as the teacher's does, which meets nobody.
        off = times.teacher / taught if taught > 0 else 1.0
        met.append(times.student + times.all_reduce - learned * off)
    # The last device to arrive waits least: its time is that of the meeting itself.
    return max(min(met) / predicted, _LEAST)
