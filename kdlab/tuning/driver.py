"""The search: ask Optuna, have workers run trials, tell Optuna. The only writer of the study.

What a trial came to is in its run folder before the study is told, so that a driver which
is killed in between finds it there: no trial is lost, none counts twice. A trial that was
under way is tried again with the same values.
"""

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import optuna
from optuna.trial import FrozenTrial, TrialState

from kdlab.errors import ClusterError, KdlabError, RunStopped
from kdlab.events.ensemble import LocalModelLost
from kdlab.events.event import Emit, Event
from kdlab.events.general import Note
from kdlab.events.sweeps import AS_IT_IS, TrialStarted, TrialStopping
from kdlab.events.training import EpochDone
from kdlab.experiment.folder import RunFolder
from kdlab.tuning.best import counts
from kdlab.tuning.plan import described
from kdlab.tuning.space import Space, Values
from kdlab.tuning.spec import TRIALS
from kdlab.tuning.trial_messages import TrialEnded, TrialOrder
from kdlab.tuning.trial_notes import PARAMETERS, RETRY_OF, RUN, VALUES, WHY, values_of, why
from kdlab.tuning.trial_workers import TrialWorkerLost, TrialWorkers
from kdlab.tuning.verdicts import RunningTrial, Verdicts

_ENQUEUED = "kdlab.enqueued"  # of the study
_TICK_S = 0.005  # between looks at pipes
_WATCH_S = 0.1  # between looks at the events of running trials
_STOP_S = 60.0  # for trials to save and end


class MakeOrder(Protocol):
    def __call__(self, number: int, values: Values) -> TrialOrder:
        """A trial's order, with its run folder; KdlabError where the values do not make a spec."""


class Driver:
    """`run()` it once; nobody else writes to the study.

    Args:
        make: a trial's order.
        first: settings that are tried before the sweep's own, with why.
        trouble: asked when a trial has failed: what would have all others fail too.
    """

    def __init__(
        self,
        *,
        space: Space,
        study: optuna.Study,
        workers: TrialWorkers,
        make: MakeOrder,
        emit: Emit,
        stop: Callable[[], bool],
        first: Sequence[tuple[str, Values]] = (),
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.spec, self.space, self.study, self.workers = space.spec, space, study, workers
        self.make, self.emit, self.stop, self.first = make, emit, stop, first
        self.trouble = trouble
        self.running: dict[int, RunningTrial] = {}
        self.verdicts = Verdicts(self.spec, study, emit)
        self.ended_early: str | None = None
        self._asks: list[float] = []  # seconds each, with the order made
        self._begin: float | None = None  # of the first trial
        self._watched = time.monotonic()
        self._described = described(space)

    @property
    def ms_per_trial(self) -> float | None:
        """Milliseconds of the driver's own time."""
        if not self._asks:
            return None
        return 1000 * (sum(self._asks) + sum(self.verdicts.seconds)) / len(self._asks)

    def run(self) -> None:
        """Until there are enough trials, or the time is over.

        Raises:
            RunStopped: the user asked; running trials are tried again by a resume.
            ClusterError: workers do not come up.
        """
        self.verdicts.ended = counts(self.study).ended
        self._take_up()
        self._enqueue()
        self.verdicts.enough = self._wanted()
        while True:
            for event in self.workers.events():
                self._hear(event)
            self._watch()
            if self.stop():
                self._end_gracefully()
                raise RunStopped("stopped by the user; the study has all that ended")
            begun = self._fill()
            if not self.running and not begun and self._is_over():
                if self.verdicts.ended < self.verdicts.enough:
                    self.ended_early = f"the time limit of {self.spec.time_limit_s:g} s"
                return
            time.sleep(_TICK_S)  # between looks at pipes

    # Before the first trial

    def _take_up(self) -> None:
        """What a driver that was killed or stopped has left."""
        words = "was under way when the sweep ended"
        retried = {t.user_attrs.get(RETRY_OF) for t in self._trials()}
        for trial in self._trials(TrialState.RUNNING):
            live = optuna.trial.Trial(self.study, trial._trial_id)
            path = trial.user_attrs.get(RUN)
            run = None if path is None else Path(path)
            result = _kept(run)
            if result is not None:
                state = RunningTrial(live, values_of(trial), run, begun=0.0)
                self.verdicts.finished(state, result)
            elif trial.number in retried:
                self.verdicts.given_up(live, f"{words}; tried again")
            else:
                self.verdicts.again(live, words, counts=False)

    def _enqueue(self) -> None:
        """What is tried first, once per study; also when it was killed while at this."""
        if self.study.user_attrs.get(_ENQUEUED):
            return
        first = list[tuple[str, Mapping[str, object]]]()
        as_it_is = self.space.as_it_is() if self.spec.defaults else None
        if as_it_is is not None:
            first.append((AS_IT_IS, as_it_is))
        elif self.spec.defaults:
            words = "The experiment's own values are not in the space, so it is not tried as it is."
            self.emit(Note(message=words))
        first += [*self.first, *(("enqueued", values) for values in self.spec.enqueue)]
        if self.spec.sampler["name"] == "grid":
            known = [values for _, values in first]
            first += [("grid", v) for v in self.space.grid() if v not in known]
        there = {repr(t.user_attrs.get(PARAMETERS)) for t in self._trials()}
        for reason, values in first:
            parameters = self.space.parameters(values)
            if repr(parameters) not in there:
                there.add(repr(parameters))
                attributes = {WHY: reason, PARAMETERS: parameters}
                self.study.enqueue_trial(parameters, user_attrs=attributes)
        self.study.set_user_attr(_ENQUEUED, True)

    def _wanted(self) -> int:
        if self.spec.sampler["name"] != "grid":
            return self.spec.trials or TRIALS
        own = len([t for t in self._trials() if RETRY_OF not in t.user_attrs])
        return min(own, self.spec.trials or own)

    # While trials run

    def _fill(self) -> bool:
        """Something to do for everybody who has nothing; whether anything began."""
        begun = False
        for worker in self.workers.idle():
            if self._is_over():
                break
            begun = self._begin_trial(worker) or begun
        return begun

    def _is_over(self) -> bool:
        limit = self.spec.time_limit_s
        begin = self._begin
        if limit is not None and begin is not None and time.monotonic() - begin > limit:
            return True
        return self.verdicts.ended + len(self.running) >= self.verdicts.enough

    def _begin_trial(self, worker: int) -> bool:
        begin = time.perf_counter()
        self._begin = self._begin or time.monotonic()
        trial = self.study.ask()
        values = self.space.suggest(trial)
        trial.set_user_attr(VALUES, values)
        try:
            order = self.make(trial.number, values)
        except KdlabError as error:  # these values do not go together
            self.verdicts.failed(RunningTrial(trial), str(error))
            return False
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
        return True

    def _watch(self) -> None:
        """Intermediate values, for the pruner."""
        watched = self.spec.metric(0).watched
        prunes = self.spec.pruner.get("name", "none") != "none"
        if not prunes or watched is None or time.monotonic() - self._watched < _WATCH_S:
            return
        self._watched = time.monotonic()
        for number, state in list(self.running.items()):
            if state.read is None or state.pruned:
                continue
            for event in state.read():
                if self._is_of_the_student(event) and event.get(watched) is not None:
                    self._report(number, state, float(event[watched]))

    def _is_of_the_student(self, event: Event) -> bool:
        """An end of an epoch: not of its teacher, nor of what it is compared with."""
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

    def _hear(self, event: TrialEnded | TrialWorkerLost) -> None:
        if isinstance(event, TrialWorkerLost):
            self.emit(LocalModelLost(order=event.order, why=event.error))
            if event.order is not None:
                self._lost(self.running.pop(event.order), event.error)
            if event.hopeless:
                raise ClusterError(f"A worker for trials does not come up. {event.error}")
            return
        state = self.running.pop(event.order)
        if event.state == "finished":
            assert event.result is not None
            self.verdicts.finished(state, event.result)
        elif state.pruned:
            self.verdicts.pruned(state)
        elif event.state == "stopped":
            self.verdicts.again(state.trial, "was stopped", counts=False)
        elif event.state == "no_room":
            self.verdicts.again(state.trial, str(event.error), counts=False)
            raise OSError(errno.ENOSPC, f"{event.error} (trial {event.order})")
        else:
            self._failed(state, str(event.error))

    def _failed(self, state: RunningTrial, error: str) -> None:
        trouble = self.trouble()
        if trouble is not None:
            self.verdicts.again(state.trial, trouble, counts=False)
            raise ClusterError(f"{trouble} The trial that failed by it: {error}")
        self.verdicts.failed(state, error)

    def _lost(self, state: RunningTrial, reason: str) -> None:
        """Its process is gone; what it had written last decides."""
        result = _kept(state.run)
        if result is not None:
            self.verdicts.finished(state, result)
        else:
            self.verdicts.again(state.trial, reason, state=state)

    def _end_gracefully(self) -> None:
        """Trials save and end; they are tried again when the sweep goes on."""
        for number in self.running:
            self.workers.stop(number)
        deadline = time.monotonic() + _STOP_S
        while self.running and time.monotonic() < deadline:
            for event in self.workers.events():
                self._hear(event)
            time.sleep(_TICK_S)  # between looks at pipes

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or None)


def _kept(run: Path | None) -> Mapping[str, object] | None:
    """The result of a trial that had come to its end when its process was lost."""
    if run is None:  # a simulation keeps nothing
        return None
    status = RunFolder(run).raw_status()
    return status.result if status.state == "finished" else None
