"""Events of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

from kdlab.events.event import Event

AS_IT_IS = "the experiment as it is"  # why a trial is tried


class SweepStarted(Event):
    """A session of a sweep begins."""

    study: str
    sweep: str
    group: str  # the experiment in MLflow
    tracking_uri: str | None
    spec: Mapping[str, Any]
    spec_hash: str
    objectives: list[str]
    directions: Sequence[str]  # minimize or maximize, of each
    optuna: str  # its version

    def text(self) -> str:
        return f"sweep {self.study}: {', '.join(self.objectives)}"


class TrialStarted(Event):
    """A trial was given to a worker."""

    number: int
    values: Mapping[str, object]  # that the sampler chose
    run: str | None  # its folder; None: simulated
    why: str  # suggested, enqueued, default, ...
    worker: int | None


class TrialStopping(
    Event, line="trial {number} is pruned after epoch {epoch} ({value:.2f})"
):
    """The pruner stops a trial."""

    number: int
    epoch: int
    value: float


class TrialRequeued(Event, line="trial {number} is retried: {why}"):
    """A trial is retried, since its worker was lost or the sweep stopped."""

    number: int
    why: str
    tries: int


class TrialDone(Event):
    """A trial has ended."""

    number: int
    state: str  # complete, pruned, failed
    seconds: float | None
    ended: int  # trials so far
    of_trials: int
    run: str | None
    set: Mapping[str, object]
    values_found: Mapping[str, float | None] | None = None  # of a complete one, by metric
    feasible: bool | None = None  # True where it satisfies the constraints
    epoch: int | None = None  # of a pruned one
    error: str | None = None  # of a failed one


class Searched(Event, line="the best is trial {best}"):
    """The search is over; confirmation may follow."""

    best: int
    early: str | None  # why it ended before all trials; None: it did not


class Confirming(Event, line="{runs} runs with the fresh seeds {seeds}"):
    """The best setting and the unchanged experiment are run again with fresh seeds."""

    seeds: list[int]
    runs: int


class RepeatStarted(Event, line="{name}: {run}"):
    """A setting is run again with a fresh seed."""

    name: str  # of its folder
    setting: str  # "best" or "as_it_is"
    seed: int
    run: str
    set: Mapping[str, object]


class RepeatDone(Event):
    """A repeated run has ended; a lost one is run again, in another folder."""

    run: str
    state: str  # finished, failed, lost


class SweepDone(Event):
    """A session of a sweep ends."""

    state: str
    result: Mapping[str, Any] | None = None
    error: str | None = None
