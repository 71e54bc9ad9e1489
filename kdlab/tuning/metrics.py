"""What a sweep can aim at: numbers that a finished trial has, each with its direction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from pathlib import Path
from typing import Literal

from kdlab.config.folders import nearest
from kdlab.errors import NotFoundError
from kdlab.events.event import Event
from kdlab.events.log import read_all
from kdlab.events.training import StepLogged

StudyDirection = Literal["maximize", "minimize"]
Events = Sequence[Event]
ResultFacts = Mapping[str, object]  # of a run or a simulation, as JSON has it
Take = Callable[[ResultFacts, Events], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a finished trial, in `objectives` and `constraints`."""

    name: str
    direction: StudyDirection  # which way is better
    take: Take | None = None  # None is what stands under its name in the result
    watched: str | None = None  # key of `epoch_done` events; None: known in the end only

    def of(self, result: ResultFacts, events: Events) -> float | None:
        """The number; None where the run has none."""
        if self.take is not None:
            return self.take(result, events)
        value = result.get(self.name)
        return value if isinstance(value, int | float) else None


def _of_members(over: Callable[[list[float]], float], key: str) -> Take:
    """A number of each member, 0 where it has none; None where there are no members."""

    def of(result: ResultFacts, events: Events) -> float | None:
        rows = result.get("runs")
        each = [row.get(key) or 0 for row in rows] if isinstance(rows, list) else []
        return over(each) if each else None

    return of


def _teacher_seconds(result: ResultFacts, events: Events) -> float:
    """Teachers held, times how long: what a cloud would charge."""
    total = 0.0
    steps = [e for e in events if isinstance(e, StepLogged) and "teachers" in e.figures]
    for before, after in pairwise(steps):
        if before.member == after.member:
            total += after.figures["teachers"] * (after.time - before.time)
    return total


_EACH_EPOCH = "validation_top1"
_RUN = (
    # Percent on validation images, after the last epoch and of the best one.
    Metric("validation_top1", "maximize", watched=_EACH_EPOCH),
    Metric("validation_top1_best", "maximize", watched=_EACH_EPOCH),
    # Percent on test images: what is chosen by these has no unseen images left. The global
    # model is that of EC-DNN, MA-DNN and E-DNN.
    Metric("student_top1", "maximize", watched=_EACH_EPOCH),
    Metric("student_top5", "maximize"),
    Metric("global_top1", "maximize"),
    Metric("samples_per_second", "maximize"),  # of the student
    Metric("wall_seconds", "minimize"),  # of the whole run
    Metric(
        "train_seconds", "minimize", _of_members(fsum, "train_seconds")
    ),  # in the training loop
    Metric("teacher_seconds", "minimize", _teacher_seconds),
    # Most unused soft labels, samples.
    Metric("volume_max", "minimize", _of_members(max, "volume_max")),
    Metric(
        "resends", "minimize", _of_members(fsum, "resends")
    ),  # requests that were sent again
    Metric(
        "samples_lost", "minimize", _of_members(fsum, "samples_lost")
    ),  # that no step was taken on
)
_SIMULATED = (
    Metric("samples_per_second", "maximize"),  # of all students
    Metric("of_n_training", "maximize"),  # over that of the students without a teacher
    Metric("teachers", "minimize"),  # rented
    Metric("teachers_used", "minimize"),  # held at the end
    Metric("volume_max", "minimize"),
    Metric("resends", "minimize"),
    Metric("samples_lost", "minimize"),  # not delivered
)


def known(simulated: bool) -> dict[str, Metric]:
    return {m.name: m for m in (_SIMULATED if simulated else _RUN)}


def metric(name: str, simulated: bool) -> Metric:
    """A metric by its name; NotFoundError where there is none, with all of them."""
    found = known(simulated)
    if name not in found:
        where = "a simulation" if simulated else "a run"
        raise NotFoundError(
            f"{where} has no metric {name!r}.{nearest(name, found)} "
            f"All: {', '.join(found)}."
        )
    return found[name]


def measured(
    result: ResultFacts, run: Path | None, simulated: bool
) -> dict[str, float | None]:
    """All metrics of what has ended well; None is what it has not.

    Args:
        result: its own.
        run: its folder; a simulation has none.
        simulated: whether it was a simulation.
    """
    events = () if run is None else read_all(run / "events.jsonl")
    return {name: m.of(result, events) for name, m in known(simulated).items()}
