"""Events of blockwise distillation (Pipe-BD)."""

from collections.abc import Mapping

from kdlab.events.event import Event


class PlanChosen(Event, line="{table}"):
    """The plan of all devices, made from the profile (Pipe-BD, section V)."""

    programme: Mapping[str, object]
    table: str
    ideal_s: Mapping[str, float]  # of a step, by part of the work, perfectly divided


class PlanMeasured(
    Event,
    line="a step took {measured_s:.4f} s, predicted {predicted_s:.4f} s "
    "({predicted_over_measured:.2f} of it)",
):
    """The plan's prediction beside the median of what steps took."""

    predicted_s: float
    measured_s: float
    predicted_over_measured: float


class TraceRecorded(Event):
    """A trace of the devices over the last steps of an epoch."""

    spans: list[list[str | int | float]]  # device, part, step, begin and end in seconds


class ArchitectureFound(Event, line="the search found {choices}"):
    """The best path through a supernet was found; its file is written."""

    choices: list[object]  # of each place


class BlocksChosen(
    Event, line="{table}\nthe student is {faster:.2f} times as fast as the teacher"
):
    """The best replacement of each block within the budget."""

    choices: list[str]  # of each block
    table: str
    faster: float  # factor over the teacher's speed, one image on one core, measured


class WholeStudentStarted(Event, line="training the whole student ({epochs} epochs)"):
    """The blocks are distilled; training of the whole student starts."""

    epochs: int
    distilled: Mapping[str, float]  # percent, of the distilled blocks
