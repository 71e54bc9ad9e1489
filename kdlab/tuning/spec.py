"""The spec of a sweep, as a file under configs/sweeps/ describes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from kdlab.config import Fault, Range
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, Spec
from kdlab.errors import NotFoundError
from kdlab.experiment.settings import Tracking, Workers
from kdlab.tuning import metrics
from kdlab.tuning.metrics import StudyDirection

TRIALS = 30  # default number of trials
_STEPS = 1e15  # in a range; Optuna counts no more exactly
_POSITIVE = Range(ge=1)
_SEEDS = tuple[Annotated[int, Range(ge=0)], ...]


@dataclass(frozen=True, kw_only=True)
class Dimension(Spec):
    """Values of one key. Integer keys get integers.

    low, high: bounds, inclusive.
    log: sample on a log scale.
    step: distance between values.
    choices: instead of low and high: numbers, words, true and false, or names of cards and
        components.
    times: another key of the space; the value is that key's, times a factor from low to high.
    when: keys of the space with the value (or list of values) at which this key exists.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: Annotated[float, POSITIVE] | None = None
    choices: tuple[Any, ...] | None = None
    times: str | None = None
    when: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[float, float]:
        """Bounds of the range; `choices` have none."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def cross_faults(self) -> Iterator[Fault]:
        empty = [key for key, required in self.when.items() if required in ([], ())]
        yield from (Fault(f"when.{key}", "is an empty list of values") for key in empty)
        if self.choices is not None:
            if not self.choices:
                yield Fault("choices", "is empty")
            for name in ("low", "high", "step", "times"):
                if getattr(self, name) is not None:
                    yield Fault(name, "has no meaning beside choices")
            if self.log:
                yield Fault("log", "has no meaning beside choices")
            return
        if self.low is None or self.high is None:
            end = "low" if self.low is None else "high"
            yield Fault(end, "is missing; or set choices")
            return
        if self.low >= self.high:
            yield Fault("low", f"is {self.low:g} and high is {self.high:g}")
        if self.log and self.low <= 0:
            yield Fault("low", f"is {self.low:g}; a log scale begins above 0")
        if self.step is not None and (self.high - self.low) / self.step > _STEPS:
            yield Fault("step", f"is {self.step:g}; more than {_STEPS:g} fit in the range")
        if self.log and self.step is not None:
            yield Fault("step", "has no meaning on a log scale")


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """metric: number of a run; direction: null takes the metric's default."""

    metric: str
    direction: StudyDirection | None = None


@dataclass(frozen=True, kw_only=True)
class Constraint(Spec):
    """Condition that the best trial must meet."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if (self.at_least is None) == (self.at_most is None):
            yield Fault("at_least", "or at_most: give one of them")

    def excess(self, value: float) -> float:
        """Return the violation of the constraint; at most 0 if it holds."""
        if self.at_least is not None:
            return self.at_least - value
        assert self.at_most is not None
        return value - self.at_most


@dataclass(frozen=True, kw_only=True)
class Confirm(Spec):
    """Repeat the best trial and the unchanged experiment with fresh seeds.

    The best of many trials is partly luck; these runs were not selected.
    """

    seeds: _SEEDS = (1001, 1002, 1003)

    def cross_faults(self) -> Iterator[Fault]:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield Fault("seeds", f"is {list(self.seeds)}; give at least one, each once")


@dataclass(frozen=True, kw_only=True)
class WarmStart(Spec):
    """Try the best settings of an earlier sweep first, and measure them again.

    study: name of the earlier study.
    best: number of its trials.
    """

    study: str
    best: Annotated[int, _POSITIVE] = 3


@dataclass(frozen=True, kw_only=True)
class SweepSpec(Spec):
    """A search over the keys of an experiment or of a simulation.

    experiment: name under configs/, or a path to a YAML file.
    simulation: card under registry/simulations instead; a trial takes milliseconds.
    overrides: keys that are the same in all trials, such as fewer epochs.
    space: values to search, by dotted key.
    enqueue: settings to try first, such as a paper's.
    defaults: try the unchanged experiment first.
    objectives: one or several metrics.
    constraints: conditions that the best must meet.
    sampler: {name: tpe, ...} with Optuna's options; also random, grid, qmc, cmaes,
        gp, nsga2, nsga3.
    pruner: {name: none}; or median, percentile, successive_halving, hyperband, patient,
        threshold, wilcoxon. It checks the first objective after each epoch.
    trials: total number, including those of a study that continues; null is 30, or all of a
        grid.
    time_limit_s: seconds after the start of the first trial; later ones do not start.
    seeds: seeds of each trial, whose result is their mean; empty takes the experiment's.
    jobs: parallel trials; null is one for each GPU, or all CPU cores.
    retries: retries of a trial whose process was lost.
    storage: storage of the study. `sqlite` is slower and can be opened as a URL.
    warm_start: settings of an earlier sweep.
    confirm: fresh seeds for the best; null skips it.
    share_pool: one teacher pool for all trials, if all have the same teacher.
    keep: `best` deletes the weights of all other trials.
    workers: Dask cluster that runs the trials; null is this machine.
    """

    about: str = ""
    experiment: str | None = None
    simulation: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Dimension]
    enqueue: tuple[Mapping[str, Any], ...] = ()
    defaults: bool = True
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()
    sampler: Mapping[str, Any] = field(default_factory=lambda: {"name": "tpe", "seed": 0})
    pruner: Mapping[str, Any] = field(default_factory=lambda: {"name": "none"})
    trials: Annotated[int, _POSITIVE] | None = None
    time_limit_s: Annotated[float, POSITIVE] | None = None
    seeds: _SEEDS = ()
    jobs: Annotated[int, _POSITIVE] | None = None
    retries: Annotated[int, NOT_NEGATIVE] = 2
    storage: Literal["journal", "sqlite"] = "journal"
    warm_start: WarmStart | None = None
    confirm: Confirm | None = field(default_factory=Confirm)
    share_pool: bool = True
    keep: Literal["best", "all"] = "best"
    workers: Workers | None = None
    tracking: Tracking = field(default_factory=Tracking)

    def cross_faults(self) -> Iterator[Fault]:
        if (self.experiment is None) == (self.simulation is None):
            yield Fault("experiment", "or simulation: give one of them")
            return
        if not self.space:
            yield Fault("space", "is empty; give at least one key with its values")
        if not self.objectives:
            yield Fault("objectives", "is empty; give at least one metric")
        if self.simulation is not None and self.seeds:
            yield Fault("seeds", "apply to an experiment; a simulation has its own seed")
        yield from self._metric_faults()
        yield from self._when_faults()

    def _metric_faults(self) -> Iterator[Fault]:
        parts: dict[str, Sequence[Objective | Constraint]]
        parts = {"objectives": self.objectives, "constraints": self.constraints}
        unknown = False
        for part, items in parts.items():
            for i, item in enumerate(items):
                try:
                    metrics.metric(item.metric, self.simulated)
                except NotFoundError as error:
                    unknown = True
                    yield Fault(f"{part}.{i}.metric", str(error))
        if not unknown and self.pruner.get("name", "none") != "none":
            yield from self._pruner_faults()

    def _pruner_faults(self) -> Iterator[Fault]:
        if len(self.objectives) > 1:
            yield Fault(
                "pruner",
                f"is {self.pruner['name']} and there are {len(self.objectives)} objectives; "
                "Optuna prunes by one only. Remove pruner, or keep one objective and "
                "make the others constraints",
            )
        elif self.objectives and self.metric(0).watched is None:
            options = metrics.available(self.simulated).values()
            watched = [m.name for m in options if m.watched]
            yield Fault(
                "pruner",
                f"is {self.pruner['name']}, and {self.objectives[0].metric} is known only when "
                f"a trial has ended; a pruner can watch {', '.join(watched) or 'none'}",
            )

    def _when_faults(self) -> Iterator[Fault]:
        previous: list[str] = []
        for key, dimension in self.space.items():
            for base in (*dimension.when, *filter(None, [dimension.times])):
                if base not in previous:
                    message = f"depends on {base}, which must come before it in the space"
                    yield Fault(f"space.{key}", message)
            previous.append(key)

    @property
    def simulated(self) -> bool:
        return self.simulation is not None

    def metric(self, number: int) -> metrics.Metric:
        """Return the metric of objective `number`."""
        return metrics.metric(self.objectives[number].metric, self.simulated)

    def signs(self) -> list[int]:
        """Return the sign of each objective by which less is better."""
        return [1 if d == "minimize" else -1 for d in self.directions()]

    def directions(self) -> list[StudyDirection]:
        return [
            objective.direction or self.metric(i).direction
            for i, objective in enumerate(self.objectives)
        ]
