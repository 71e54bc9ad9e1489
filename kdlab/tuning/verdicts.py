"""What a study is told of a trial that has ended, and keeps of it; what people hear of it."""

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

# User attributes of a trial, beside what Optuna itself keeps.
WHY, RETRY_OF, TRIES, VALUES, ERROR, RUN = "why", "retry_of", "tries", "set", "error", "run"
METRICS = "metrics"
PARAMETERS = "enqueued"  # as Optuna names them


def values_of(trial: FrozenTrial) -> Values:
    """What the keys of the space were set to."""
    return dict(trial.user_attrs[VALUES])


def metrics_of(trial: FrozenTrial) -> dict[str, float]:
    """All metrics of a trial that ended well."""
    return dict(trial.user_attrs.get(METRICS, {}))


def why(trial: FrozenTrial | Trial) -> str:
    """Who chose its values."""
    return str(trial.user_attrs.get(WHY, "suggested"))


@dataclass(slots=True)
class RunningTrial:
    """A trial that a worker carries out."""

    trial: Trial
    values: Values = field(default_factory=dict)
    run: Path | None = None  # its folder
    begun: float = field(default_factory=time.monotonic)  # 0: by an earlier driver
    read: EventReader | None = field(init=False)  # of its events
    reported: int = 0  # epochs, over all seeds
    pruned: bool = False

    def __post_init__(self) -> None:
        self.read = None if self.run is None else EventReader(self.run / "events.jsonl")


class Verdicts:
    """Each trial gets one: complete, pruned, failed, or to be tried again."""

    def __init__(self, spec: SweepSpec, study: optuna.Study, emit: Emit) -> None:
        self.spec, self.study, self.emit = spec, study, emit
        self.ended = 0  # trials; one that was tried again counts once
        self.enough = spec.trials or TRIALS
        self.seconds: list[float] = []  # that telling took, each

    def finished(self, state: RunningTrial, result: ResultFacts) -> None:
        """It has a result; what it lacks of the objectives is a failure."""
        begin = time.perf_counter()
        found = measured(result, state.run, self.spec.simulated)
        wanted = [o.metric for o in self.spec.objectives]
        missing = [n for n in wanted if found[n] is None]
        if missing:
            self.failed(state, f"the run has no {', '.join(missing)}")
            return
        trial, keeps = state.trial, True
        for constraint in self.spec.constraints:
            value = found[constraint.metric]
            excess = float("inf") if value is None else constraint.excess(value)
            keeps = keeps and excess <= 0
            trial.set_constraint(constraint.metric, excess)
        trial.set_user_attr(METRICS, {k: v for k, v in found.items() if v is not None})
        self.study.tell(trial, [float(found[n] or 0.0) for n in wanted])
        self.seconds.append(time.perf_counter() - begin)
        done = self._done(state, "complete")
        self.emit(done.but(values_found=found, feasible=keeps))

    def pruned(self, state: RunningTrial) -> None:
        self.study.tell(state.trial, state=TrialState.PRUNED)
        self.emit(self._done(state, "pruned").but(epoch=state.reported))

    def failed(self, state: RunningTrial, error: str) -> None:
        """Kept with its error; the search goes on."""
        self.given_up(state.trial, error)
        self.emit(self._done(state, "failed").but(error=error))

    def given_up(self, trial: Trial, error: str) -> None:
        """A failure that nobody needs to hear of."""
        trial.set_user_attr(ERROR, error)
        self.study.tell(trial, state=TrialState.FAIL)

    def again(self, state: RunningTrial, reason: str, *, counts: bool = True) -> None:
        """The same values once more, unless that has been tried too often."""
        trial = state.trial
        tries = int(trial.user_attrs.get(TRIES, 0)) + counts
        if tries > self.spec.retries:
            self.failed(state, f"lost {tries} times; the last time: {reason}")
            return
        # It may have been killed before it had asked for all of what was enqueued.
        parameters = {**trial.user_attrs.get(PARAMETERS, {}), **trial.params}
        attributes = {WHY: why(trial), RETRY_OF: trial.number}
        attributes |= {TRIES: tries, PARAMETERS: parameters}
        # First the new one: killed in between, the old one is seen to have a follower.
        self.study.enqueue_trial(parameters, user_attrs=attributes)
        self.given_up(trial, f"{reason}; tried again")
        self.emit(TrialRequeued(number=trial.number, why=reason, tries=tries))

    def _done(self, state: RunningTrial, how: str) -> TrialDone:
        self.ended += 1
        return TrialDone(
            number=state.trial.number,
            state=how,
            seconds=time.monotonic() - state.begun if state.begun else None,
            ended=self.ended,
            of_trials=self.enough,
            run=None if state.run is None else str(state.run),
            set=state.values,
        )
