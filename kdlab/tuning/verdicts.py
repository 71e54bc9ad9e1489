"""Report trials that ended: to the study, and as events."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from kdlab.events.event import Emit
from kdlab.events.log import EventReader
from kdlab.events.sweeps import TrialDone, TrialRequeued
from kdlab.tuning.metrics import ResultFacts, measured
from kdlab.tuning.space import Values
from kdlab.tuning.spec import TRIALS, SweepSpec

# User attributes of a trial in the study.
WHY, RETRY_OF, TRIES, VALUES, ERROR, RUN = "why", "retry_of", "tries", "set", "error", "run"
METRICS = "metrics"
PARAMETERS = "enqueued"  # values by Optuna's names


def values_of(trial: FrozenTrial) -> Values:
    """Return the values of a trial by key of the space."""
    return dict(trial.user_attrs[VALUES])


def metrics_of(trial: FrozenTrial) -> dict[str, float]:
    """Return all metrics of a completed trial."""
    return dict(trial.user_attrs.get(METRICS, {}))


def why(trial: FrozenTrial | Trial) -> str:
    """Return the origin of a trial's values."""
    return str(trial.user_attrs.get(WHY, "suggested"))


@dataclass(slots=True)
class RunningTrial:
    """A trial that a worker runs."""

    trial: Trial
    values: Values = field(default_factory=dict)
    run: Path | None = None  # run folder
    begun: float = field(default_factory=time.monotonic)  # 0: by an earlier driver
    read: EventReader | None = field(init=False)  # reads its events
    reported: int = 0  # epochs, over all seeds
    pruned: bool = False

    def __post_init__(self) -> None:
        self.read = None if self.run is None else EventReader(self.run / "events.jsonl")


class Verdicts:
    """Reports the outcome of each trial: complete, pruned, failed or requeued."""

    def __init__(self, spec: SweepSpec, study: optuna.Study, emit: Emit) -> None:
        self.spec, self.study, self.emit = spec, study, emit
        self.ended = 0  # trials that ended; a retried trial counts once
        self.enough = spec.trials or TRIALS
        self.seconds: list[float] = []  # duration of each report to the study

    def finished(self, state: RunningTrial, result: ResultFacts) -> None:
        """Report a finished trial; it fails if an objective is missing."""
        begin = time.perf_counter()
        metrics = measured(result, state.run, self.spec.simulated)
        wanted = [o.metric for o in self.spec.objectives]
        missing = [n for n in wanted if metrics[n] is None]
        if missing:
            self.failed(state, f"the run has no {', '.join(missing)}")
            return
        trial, is_feasible = state.trial, True
        for constraint in self.spec.constraints:
            value = metrics[constraint.metric]
            excess = float("inf") if value is None else constraint.excess(value)
            is_feasible = is_feasible and excess <= 0
            trial.set_constraint(constraint.metric, excess)
        trial.set_user_attr(METRICS, {k: v for k, v in metrics.items() if v is not None})
        self.study.tell(trial, [float(metrics[n] or 0.0) for n in wanted])
        self.seconds.append(time.perf_counter() - begin)
        event = self._done(state, "complete")
        self.emit(event.but(values_found=metrics, feasible=is_feasible))

    def pruned(self, state: RunningTrial) -> None:
        self.study.tell(state.trial, state=TrialState.PRUNED)
        self.emit(self._done(state, "pruned").but(epoch=state.reported))

    def failed(self, state: RunningTrial, error: str) -> None:
        """Report a failed trial with its error; the search continues."""
        self.fail(state.trial, error)
        self.emit(self._done(state, "failed").but(error=error))

    def fail(self, trial: Trial, error: str) -> None:
        """Mark a trial as failed without an event."""
        trial.set_user_attr(ERROR, error)
        self.study.tell(trial, state=TrialState.FAIL)

    def requeue(self, state: RunningTrial, reason: str, *, counts: bool = True) -> None:
        """Retry a trial's values, unless its retries are used up."""
        trial = state.trial
        tries = int(trial.user_attrs.get(TRIES, 0)) + counts
        if tries > self.spec.retries:
            self.failed(state, f"lost {tries} times; the last time: {reason}")
            return
        # It may have been killed before it used all enqueued parameters.
        parameters = {**trial.user_attrs.get(PARAMETERS, {}), **trial.params}
        attributes = {WHY: why(trial), RETRY_OF: trial.number}
        attributes |= {TRIES: tries, PARAMETERS: parameters}
        # Enqueue first: if the driver is killed in between, the retry exists already.
        self.study.enqueue_trial(parameters, user_attrs=attributes)
        self.fail(trial, f"{reason}; retried")
        self.emit(TrialRequeued(number=trial.number, why=reason, tries=tries))

    def _done(self, state: RunningTrial, outcome: str) -> TrialDone:
        self.ended += 1
        return TrialDone(
            number=state.trial.number,
            state=outcome,
            seconds=time.monotonic() - state.begun if state.begun else None,
            ended=self.ended,
            of_trials=self.enough,
            run=None if state.run is None else str(state.run),
            set=state.values,
        )
