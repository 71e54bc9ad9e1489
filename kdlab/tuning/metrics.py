"""Metrics for sweeps: numbers of a finished trial, each with its direction."""

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
ResultFacts = Mapping[str, object]  # result of a run or a simulation, as in JSON
Take = Callable[[ResultFacts, Events], float | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of a finished trial, in `objectives` and `constraints`."""

    name: str
    direction: StudyDirection  # direction of improvement
    take: Take | None = None  # None reads the result's key of this name
    watched: str | None = None  # key of `epoch_done` events; None: known only at the end

    def value(self, result: ResultFacts, events: Events) -> float | None:
        """Return the metric of a run; None where it has none."""
        if self.take is not None:
            return self.take(result, events)
        value = result.get(self.name)
        return value if isinstance(value, int | float) else None


def _of_members(over: Callable[[list[float]], float], key: str) -> Take:
    """Combine a number over members, 0 where one has none; None without members."""

    def combine(result: ResultFacts, events: Events) -> float | None:
        rows = result.get("runs")
        values = [row.get(key) or 0 for row in rows] if isinstance(rows, list) else []
        return over(values) if values else None

    return combine


def _teacher_seconds(result: ResultFacts, events: Events) -> float:
    """Return the time integral of held teachers, in teacher-seconds: what a cloud charges."""
    total = 0.0
    steps = [e for e in events if isinstance(e, StepLogged) and "teachers" in e.figures]
    for before, after in pairwise(steps):
        if before.member == after.member:
            total += after.figures["teachers"] * (after.time - before.time)
    return total


_EACH_EPOCH = "validation_top1"
_RUN = (
    # Validation accuracy in percent, after the last epoch and at the best one.
    Metric("validation_top1", "maximize", watched=_EACH_EPOCH),
    Metric("validation_top1_best", "maximize", watched=_EACH_EPOCH),
    # Test accuracy in percent: a sweep that chooses by it has no unseen images left. The
    # global model is that of EC-DNN, MA-DNN and E-DNN.
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
    Metric("resends", "minimize", _of_members(fsum, "resends")),  # requests sent again
    Metric(
        "samples_lost", "minimize", _of_members(fsum, "samples_lost")
    ),  # samples without a training step
)
_SIMULATED = (
    Metric("samples_per_second", "maximize"),  # of all students
    Metric("of_n_training", "maximize"),  # rate relative to N-training
    Metric("teachers", "minimize"),  # rented
    Metric("teachers_used", "minimize"),  # held at the end
    Metric("volume_max", "minimize"),
    Metric("resends", "minimize"),
    Metric("samples_lost", "minimize"),  # not delivered
)


def available(simulated: bool) -> dict[str, Metric]:
    return {m.name: m for m in (_SIMULATED if simulated else _RUN)}


def metric(name: str, simulated: bool) -> Metric:
    """Return a metric by name; NotFoundError, with all names, where there is none."""
    metrics = available(simulated)
    if name not in metrics:
        kind = "a simulation" if simulated else "a run"
        raise NotFoundError(
            f"{kind} has no metric {name!r}.{nearest(name, metrics)} "
            f"All: {', '.join(metrics)}."
        )
    return metrics[name]


def measured(
    result: ResultFacts, run: Path | None, simulated: bool
) -> dict[str, float | None]:
    """Return all metrics of a finished trial; None for those it does not have.

    Args:
        result: result of the trial.
        run: run folder; None for a simulation.
        simulated: whether it was a simulation.
    """
    events = () if run is None else read_all(run / "events.jsonl")
    return {m.name: m.value(result, events) for m in available(simulated).values()}
