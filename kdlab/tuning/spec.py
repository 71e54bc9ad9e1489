"""A sweep as a spec: what a file under configs/sweeps/ describes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from kdlab.config import Fault, Range
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, Spec
from kdlab.errors import NotFoundError
from kdlab.experiment.settings import Tracking, Workers
from kdlab.tuning import metrics
from kdlab.tuning.metrics import StudyDirection

TRIALS = 30  # where a sweep does not say
_POSITIVE = Range(ge=1)
_SEEDS = tuple[Annotated[int, Range(ge=0)], ...]


@dataclass(frozen=True, kw_only=True)
class Dimension(Spec):
    """What one key may be. A whole number where the key takes one.

    low, high: both included.
    log: the same chance for each factor rather than for each difference.
    step: between values.
    choices: instead of low and high: numbers, words, true and false, or names of cards and
        components.
    times: another key of the space; the value is that key's, times a factor of low to high.
    when: keys of the space with the value (or list of values) at which this one exists.
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
        """Lowest and highest of a range; `choices` have none."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def cross_faults(self) -> Iterator[Fault]:
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
            yield Fault(end, "is missing; or give choices")
            return
        if self.low >= self.high:
            yield Fault("low", f"is {self.low:g} and high is {self.high:g}")
        if self.log and self.low <= 0:
            yield Fault("low", f"is {self.low:g}; a log scale begins above 0")
        if self.log and self.step is not None:
            yield Fault("step", "has no meaning on a log scale")


@dataclass(frozen=True, kw_only=True)
class Objective(Spec):
    """metric: a number of the run; direction: null takes what is better for it."""

    metric: str
    direction: StudyDirection | None = None


@dataclass(frozen=True, kw_only=True)
class Constraint(Spec):
    """What a trial must keep to be the best."""

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if (self.at_least is None) == (self.at_most is None):
            yield Fault("at_least", "or at_most: give one of them")

    def excess(self, value: float) -> float:
        """How far it is broken; not above 0 when it holds."""
        if self.at_least is not None:
            return self.at_least - value
        assert self.at_most is not None
        return value - self.at_most


@dataclass(frozen=True, kw_only=True)
class Confirm(Spec):
    """The best trial again with fresh seeds, beside the experiment as it is.

    The best of many is best by luck too; these runs were not chosen.
    """

    seeds: _SEEDS = (1001, 1002, 1003)

    def cross_faults(self) -> Iterator[Fault]:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            yield Fault("seeds", f"is {list(self.seeds)}; give at least one, each once")


@dataclass(frozen=True, kw_only=True)
class WarmStart(Spec):
    """The best settings of an earlier sweep are tried first, and measured anew.

    study: its name.
    best: how many of its trials.
    """

    study: str
    best: Annotated[int, _POSITIVE] = 3


@dataclass(frozen=True, kw_only=True)
class SweepSpec(Spec):
    """A search over the keys of an experiment or of a simulation.

    experiment: name under configs/, or a path to a YAML file.
    simulation: card under registry/simulations instead; a trial takes milliseconds.
    overrides: keys that all trials have in common, such as fewer epochs.
    space: what is searched, by dotted key.
    enqueue: settings that are tried first, such as a paper's.
    defaults: try the experiment as it is first of all.
    objectives: one or several.
    constraints: what the best must keep.
    sampler: {name: tpe, ...} with the options of Optuna's; also random, grid, qmc, cmaes,
        gp, nsga2, nsga3.
    pruner: {name: none}; or median, percentile, successive_halving, hyperband, patient,
        threshold, wilcoxon. It looks at the first objective after each epoch.
    trials: how many in all; a study that is gone on with counts those it has. null is 30,
        or all of a grid.
    time_limit_s: after the first trial has begun; none begins later.
    seeds: of each trial, whose result is their mean; empty takes the experiment's.
    jobs: trials at a time; null takes one for each GPU, or all CPU cores.
    retries: of a trial whose process was lost.
    storage: of the study. `sqlite` is slower and can be opened as a URL.
    warm_start: settings of an earlier sweep.
    confirm: fresh seeds for the best; null leaves that away.
    share_pool: one teacher pool for all trials, where all have the same teacher.
    keep: `best` deletes the weights of all other trials.
    workers: a Dask cluster whose workers do the trials; null is this machine.
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
            yield Fault("space", "is empty; give at least one key and what it may be")
        if not self.objectives:
            yield Fault("objectives", "is empty; give at least one metric")
        if self.simulation is not None and self.seeds:
            yield Fault("seeds", "are of an experiment; a simulation has its own seed")
        yield from self._metric_faults()
        yield from self._when_faults()

    def _metric_faults(self) -> Iterator[Fault]:
        parts: dict[str, Sequence[Objective | Constraint]]
        parts = {"objectives": self.objectives, "constraints": self.constraints}
        unknown = False
        for part, several in parts.items():
            for i, one in enumerate(several):
                try:
                    metrics.metric(one.metric, self.simulated)
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
                "Optuna prunes by one only. Leave pruner away, or keep one objective and "
                "make the others constraints",
            )
        elif self.objectives and self.metric(0).watched is None:
            watched = [m.name for m in metrics.known(self.simulated).values() if m.watched]
            yield Fault(
                "pruner",
                f"is {self.pruner['name']}, and {self.objectives[0].metric} is known only when "
                f"a trial has ended; a pruner can watch {', '.join(watched) or 'none'}",
            )

    def _when_faults(self) -> Iterator[Fault]:
        before: list[str] = []
        for key, dimension in self.space.items():
            for other in (*dimension.when, *filter(None, [dimension.times])):
                if other not in before:
                    words = f"depends on {other}, which must come before it in the space"
                    yield Fault(f"space.{key}", words)
            before.append(key)

    @property
    def simulated(self) -> bool:
        return self.simulation is not None

    def metric(self, number: int) -> metrics.Metric:
        """The metric of objective `number`."""
        return metrics.metric(self.objectives[number].metric, self.simulated)

    def signs(self) -> list[int]:
        """By which each objective is multiplied, so that less is better."""
        return [1 if d == "minimize" else -1 for d in self.directions()]

    def directions(self) -> list[StudyDirection]:
        return [
            objective.direction or self.metric(i).direction
            for i, objective in enumerate(self.objectives)
        ]
