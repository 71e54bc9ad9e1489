"""The search: get values from Optuna, run trials on workers, report results to Optuna.

The driver is the study's only writer. A trial's result is in its run folder before the study
gets it, so a driver that is killed in between finds it there: no trial is lost, none counts
twice. A trial that was running is retried with the same values.
"""

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from kdlab.errors import ClusterError, KdlabError
from kdlab.events.ensemble import LocalModelLost
from kdlab.events.event import Emit, Event
from kdlab.events.general import Note
from kdlab.events.sweeps import AS_IT_IS, TrialStarted, TrialStopping
from kdlab.events.training import EpochDone
from kdlab.experiment.folder import RunFolder
from kdlab.tuning.best import counts
from kdlab.tuning.metrics import ResultFacts
from kdlab.tuning.plan import described
from kdlab.tuning.space import Space, Values
from kdlab.tuning.spec import TRIALS
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder, TrialWorkers, WorkQueue
from kdlab.tuning.verdicts import (
    PARAMETERS,
    RETRY_OF,
    RUN,
    VALUES,
    WHY,
    RunningTrial,
    Verdicts,
    why,
)

_ENQUEUED = "kdlab.enqueued"  # user attribute of the study
_WATCH_S = 0.1  # between reads of the events of running trials


class Driver(WorkQueue[RunningTrial]):
    """Driver of one search: call `run()` once; it is the study's only writer.

    Args:
        make: returns a trial's order by number and values; KdlabError for an invalid spec.
        first: settings to try before the sweep's, each with its reason.
        trouble: called after a failed trial: returns a cause that fails all others, or None.
    """

    saves_s = 60.0

    def __init__(
        self,
        *,
        space: Space,
        study: optuna.Study,
        workers: TrialWorkers,
        make: Callable[[int, Values], TrialOrder],
        emit: Emit,
        stop: Callable[[], bool],
        first: Sequence[tuple[str, Values]] = (),
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(workers, stop)
        self.spec, self.space, self.study = space.spec, space, study
        self.make, self.emit, self.first, self.trouble = make, emit, first, trouble
        self.verdicts = Verdicts(self.spec, study, emit)
        self.ended_early: str | None = None
        self._asks: list[float] = []  # seconds of each, until the order was sent
        self._begin: float | None = None  # start of the first trial, monotonic
        self._watched = time.monotonic()
        self._described = described(space)

    @property
    def ms_per_trial(self) -> float | None:
        """Driver overhead per trial in milliseconds."""
        if not self._asks:
            return None
        return 1000 * (sum(self._asks) + sum(self.verdicts.seconds)) / len(self._asks)

    def run(self) -> None:
        """Run trials until there are enough or the time limit passes.

        Raises:
            RunStopped: the user stopped it; a resume retries running trials.
            ClusterError: workers do not start.
        """
        self.verdicts.ended = counts(self.study).ended
        self._recover_trials()
        self._enqueue()
        self.verdicts.enough = self._wanted()
        self.carry_out("stopped by the user; the study has all trials that ended")
        if self.verdicts.ended < self.verdicts.enough:
            self.ended_early = f"the time limit of {self.spec.time_limit_s:g} s"

    # Before the first trial

    def _recover_trials(self) -> None:
        """Finish or retry the trials that a killed or stopped driver left running."""
        reason = "was running when the sweep ended"
        retried = {t.user_attrs.get(RETRY_OF) for t in self._trials()}
        for trial in self._trials(TrialState.RUNNING):
            live = optuna.trial.Trial(self.study, trial._trial_id)
            path, values = (trial.user_attrs.get(key) for key in (RUN, VALUES))
            run = None if path is None else Path(path)
            state = RunningTrial(live, dict(values or {}), run, begun=0.0)
            if (result := saved_result(run)) is not None:
                self.verdicts.finished(state, result)
            elif trial.number in retried:
                self.verdicts.fail(live, f"{reason}; retried")
            else:
                self.verdicts.requeue(state, reason, counts=False)

    def _enqueue(self) -> None:
        """Enqueue the first settings, once per study, even if killed during it."""
        if self.study.user_attrs.get(_ENQUEUED):
            return
        first = list[tuple[str, Mapping[str, object]]]()
        as_it_is = self.space.as_it_is() if self.spec.defaults else None
        if as_it_is is not None:
            first.append((AS_IT_IS, as_it_is))
        elif self.spec.defaults:
            message = "The experiment's values are outside the space, so it is not tried unchanged."
            self.emit(Note(message=message))
        first += [*self.first, *(("enqueued", values) for values in self.spec.enqueue)]
        if self.spec.sampler["name"] == "grid":
            known = [values for _, values in first]
            first += [("grid", v) for v in self.space.grid() if v not in known]
        enqueued = {repr(t.user_attrs.get(PARAMETERS)) for t in self._trials()}
        for reason, values in first:
            parameters = self.space.parameters(values)
            if repr(parameters) not in enqueued:
                enqueued.add(repr(parameters))
                attributes = {WHY: reason, PARAMETERS: parameters}
                self.study.enqueue_trial(parameters, user_attrs=attributes)
        self.study.set_user_attr(_ENQUEUED, True)

    def _wanted(self) -> int:
        if self.spec.sampler["name"] != "grid":
            return self.spec.trials or TRIALS
        count = len([t for t in self._trials() if RETRY_OF not in t.user_attrs])
        return min(count, self.spec.trials or count)

    # While trials run

    def is_over(self) -> bool:
        limit = self.spec.time_limit_s
        begin = self._begin
        if limit is not None and begin is not None and time.monotonic() - begin > limit:
            return True
        return self.verdicts.ended + len(self.running) >= self.verdicts.enough

    def begin(self, worker: int) -> None:
        begin = time.perf_counter()
        self._begin = self._begin or time.monotonic()
        trial = self.study.ask()
        values = self.space.suggest(trial)
        trial.set_user_attr(VALUES, values)
        try:
            order = self.make(trial.number, values)
        except KdlabError as error:  # invalid combination of values
            self.verdicts.failed(RunningTrial(trial), str(error))
            return
        run = None if order.run is None else Path(order.run)
        if run is not None:
            trial.set_user_attr(RUN, str(run))
        self.workers.send(worker, order)
        self.running[trial.number] = RunningTrial(trial, values, run)
        self._asks.append(time.perf_counter() - begin)
        started = TrialStarted(
            number=trial.number, values=values, run=order.run, why=why(trial), worker=worker
        )
        self.emit(started)

    def update(self) -> None:
        """Report intermediate values of running trials to the pruner."""
        watched = self.spec.metric(0).watched
        prunes = self.spec.pruner.get("name", "none") != "none"
        if not prunes or watched is None or time.monotonic() - self._watched < _WATCH_S:
            return
        self._watched = time.monotonic()
        for number, state in list(self.running.items()):
            if state.read is None or state.pruned:
                continue
            for event in filter(self._is_of_the_student, state.read()):
                if (value := event.facts().get(watched)) is not None:
                    self._report(number, state, float(value))

    def _is_of_the_student(self, event: Event) -> bool:
        """Return whether an event is an epoch of the student that the result describes."""
        member = event.member or ""
        if not isinstance(event, EpochDone) or member == "teacher":
            return False
        return self._described is None or member.startswith(f"{self._described}/")

    def _report(self, number: int, state: RunningTrial, value: float) -> None:
        if state.pruned:
            return
        state.reported += 1
        state.trial.report(value, state.reported)
        if state.trial.should_prune():
            state.pruned = True
            self.workers.stop(number)
            self.emit(TrialStopping(number=number, epoch=state.reported, value=value))

    def on_ended(self, end: TrialEnded) -> None:
        if end.state == "lost":
            self.emit(LocalModelLost(order=end.order, why=str(end.error)))
        if end.order is None:
            return
        state, error = self.running.pop(end.order), str(end.error)
        # For a lost trial, the result in its folder decides.
        result = saved_result(state.run) if end.state == "lost" else end.result
        if end.state in ("finished", "lost") and result is not None:
            self.verdicts.finished(state, result)
        elif end.state == "lost":
            self.verdicts.requeue(state, error)
        elif state.pruned:
            self.verdicts.pruned(state)
        elif end.state == "stopped":
            self.verdicts.requeue(state, "was stopped", counts=False)
        elif end.state == "no_room":
            self.verdicts.requeue(state, error, counts=False)
            raise OSError(errno.ENOSPC, f"{error} (trial {end.order})")
        elif (trouble := self.trouble()) is not None:
            self.verdicts.requeue(state, trouble, counts=False)
            raise ClusterError(f"{trouble} A trial failed with: {error}")
        else:
            self.verdicts.failed(state, error)

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)


def saved_result(run: Path | None) -> ResultFacts | None:
    """Return the result of a trial that had finished before its process was lost."""
    if run is None:  # a simulation has no folder
        return None
    status = RunFolder(run).raw_status()
    return status.result if status.state == "finished" else None
