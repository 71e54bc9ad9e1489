"""What a sweep can aim at: numbers that a finished trial has, each with its direction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from kdlab.config.folders import nearest
from kdlab.errors import NotFoundError
from kdlab.events.event import Event
from kdlab.events.training import StepLogged

Direction = Literal["maximize", "minimize"]
Events = Sequence[Event]
Take = Callable[[Mapping[str, object], Events], float | None]  # of a result and events


@dataclass(frozen=True, slots=True)
class Metric:
    """One of them.

    Attributes:
        name: in `objectives` and `constraints`.
        direction: which way is better.
        about: with its unit.
        of: the number, from a run's result and its events; None where the run has none.
        watched: key of the `epoch_done` events that shows it while it trains; None where it
            is known in the end only.
    """

    name: str
    direction: Direction
    about: str
    of: Take
    watched: str | None = None


def _plain(key: str) -> Take:
    def of(result: Mapping[str, object], events: Events) -> float | None:
        value = result.get(key)
        return value if isinstance(value, int | float) else None

    return of


def _each(key: str, result: Mapping[str, object]) -> list[float]:
    """A number of each member; 0 where it has none."""
    rows = result.get("runs")
    found = [row.get(key) for row in rows] if isinstance(rows, list) else []
    return [0 if value is None else value for value in found]


def _max(key: str) -> Take:
    return lambda result, events: max(_each(key, result), default=None)


def _sum(key: str) -> Take:
    def of(result: Mapping[str, object], events: Events) -> float | None:
        each = _each(key, result)
        return float(sum(each)) if each else None

    return of


def _teacher_seconds(result: Mapping[str, object], events: Events) -> float:
    """Teachers held, times how long: what a cloud would charge."""
    total = 0.0
    steps = [e for e in events if isinstance(e, StepLogged) and "teachers" in e.figures]
    for before, after in pairwise(steps):
        if before.member == after.member:
            total += after.figures["teachers"] * (after.time - before.time)
    return total


_VALIDATION, _SCREEN = "validation_top1", "percent on validation images"
_RUN = (
    Metric(
        _VALIDATION,
        "maximize",
        f"{_SCREEN}, after the last epoch",
        _plain(_VALIDATION),
        _VALIDATION,
    ),
    Metric(
        "validation_top1_best",
        "maximize",
        f"{_SCREEN}, of the best epoch",
        _plain("validation_top1_best"),
        _VALIDATION,
    ),
    Metric(
        "student_top1",
        "maximize",
        "percent on test images; what is chosen by it has no unseen images left",
        _plain("student_top1"),
        _VALIDATION,
    ),
    Metric(
        "student_top5",
        "maximize",
        "the same, of the five likeliest",
        _plain("student_top5"),
    ),
    Metric(
        "global_top1",
        "maximize",
        "percent on test images, global model of EC-DNN, MA-DNN, E-DNN",
        _plain("global_top1"),
    ),
    Metric(
        "samples_per_second", "maximize", "of the student", _plain("samples_per_second")
    ),
    Metric("wall_seconds", "minimize", "of the whole run", _plain("wall_seconds")),
    Metric("train_seconds", "minimize", "in the training loop", _sum("train_seconds")),
    Metric("teacher_seconds", "minimize", "teachers held times seconds", _teacher_seconds),
    Metric(
        "volume_max", "minimize", "most unused soft labels, in samples", _max("volume_max")
    ),
    Metric("resends", "minimize", "requests that were sent again", _sum("resends")),
    Metric(
        "samples_lost",
        "minimize",
        "samples that no step was taken on",
        _sum("samples_lost"),
    ),
)
_SIMULATED = (
    Metric(
        "samples_per_second", "maximize", "of all students", _plain("samples_per_second")
    ),
    Metric(
        "of_n_training",
        "maximize",
        "samples/s over that of the students without a teacher",
        _plain("of_n_training"),
    ),
    Metric("teachers", "minimize", "teachers rented", _plain("teachers")),
    Metric(
        "teachers_used", "minimize", "teachers held at the end", _plain("teachers_used")
    ),
    Metric(
        "volume_max",
        "minimize",
        "most unused soft labels, in samples",
        _plain("volume_max"),
    ),
    Metric("resends", "minimize", "requests that were sent again", _plain("resends")),
    Metric("samples_lost", "minimize", "samples not delivered", _plain("samples_lost")),
)


def known(simulated: bool) -> dict[str, Metric]:
    return {m.name: m for m in (_SIMULATED if simulated else _RUN)}


def metric(name: str, simulated: bool) -> Metric:
    """By its name.

    Raises:
        NotFoundError: there is none; lists them.
    """
    found = known(simulated)
    if name not in found:
        where = "a simulation" if simulated else "a run"
        raise NotFoundError(
            f"{where} has no metric {name!r}.{nearest(name, list(found))} "
            f"All: {', '.join(found)}."
        )
    return found[name]
