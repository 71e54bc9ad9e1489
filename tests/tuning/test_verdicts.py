"""The verdict on a trial that has ended: in the study, and as an event."""

import optuna
import pytest
from optuna.trial import TrialState
from small_sweeps import SIMULATED, TRAINED, searched
from tests_support import event

from kdlab.events.log import EventLog
from kdlab.tuning.verdicts import (
    METRICS,
    PARAMETERS,
    RETRY_OF,
    TRIES,
    WHY,
    RunningTrial,
    Verdicts,
)


class Search:
    """A study, its verdicts and the events that they emit."""

    def __init__(self, tree, **changes):
        spec = searched(tree, **changes).spec
        self.study = optuna.create_study(directions=spec.directions())
        self.events = []
        self.verdicts = Verdicts(spec, self.study, self.events.append)

    def asked(self, run=None, **values):
        trial = self.study.ask()
        return RunningTrial(trial, values, run)

    @property
    def last(self):
        return self.study.trials[-1]


GOOD = {"teachers": 2, "volume_max": 40, "of_n_training": 0.95, "resends": None}


def test_a_result_is_told_with_all_that_is_known_of_it():
    search = Search(SIMULATED)
    search.verdicts.finished(search.asked(lt=3), GOOD)
    assert (search.last.state, search.last.values) == (TrialState.COMPLETE, [2.0, 40.0])
    known = {k: v for k, v in GOOD.items() if v is not None}
    assert search.last.user_attrs[METRICS] == known
    (done,) = search.events
    assert (done.state, done.feasible, done.ended, done.of_trials) == (
        "complete",
        True,
        1,
        12,
    )
    assert done.set == {"lt": 3}
    assert done.values_found["resends"] is None
    assert len(search.verdicts.seconds) == 1


@pytest.mark.parametrize(("share", "excess"), [(0.7, 0.2), (None, float("inf"))])
def test_a_broken_constraint_is_a_result_that_is_not_feasible(share, excess):
    search = Search(SIMULATED)
    search.verdicts.finished(search.asked(), GOOD | {"of_n_training": share})
    assert search.last.state == TrialState.COMPLETE
    assert search.events[0].feasible is False
    constraint = search.last.system_attrs["constraints:of_n_training"]
    assert constraint == pytest.approx(excess)


def test_a_result_without_an_objective_is_a_failure():
    search = Search(SIMULATED)
    search.verdicts.finished(search.asked(), {"teachers": 2})
    assert search.last.state == TrialState.FAIL
    assert search.events[0].error == "the run has no volume_max"
    assert search.verdicts.seconds == []


def test_what_a_result_lacks_is_taken_from_the_events_of_the_run(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    for _ in range(2):
        log.emit(event("step_logged", teachers=3, step=1, of_steps=2, loss=1.0))
    search = Search(TRAINED, objectives=[{"metric": "validation_top1"}])
    search.verdicts.finished(search.asked(tmp_path), {"validation_top1": 50.0})
    seconds = search.last.user_attrs[METRICS]["teacher_seconds"]
    assert 0 < seconds < 3 * 60  # of the two steps, which were written one after the other
    assert search.events[0].run == str(tmp_path)


def test_a_pruned_trial_says_after_which_epoch():
    search = Search(TRAINED)
    state = search.asked()
    state.reported = 4
    search.verdicts.pruned(state)
    assert search.last.state == TrialState.PRUNED
    assert (search.events[0].state, search.events[0].epoch) == ("pruned", 4)


def test_a_failure_is_kept_with_its_error_and_counts():
    search = Search(TRAINED)
    search.verdicts.failed(search.asked(), "no soft labels")
    assert search.last.user_attrs["error"] == "no soft labels"
    assert (search.events[0].error, search.verdicts.ended) == ("no soft labels", 1)


def test_of_an_earlier_driver_the_seconds_are_not_known():
    search = Search(TRAINED)
    search.verdicts.failed(RunningTrial(search.study.ask(), begun=0.0), "x")
    assert search.events[0].seconds is None


def test_the_same_values_once_more_name_whose_they_are():
    search = Search(TRAINED, retries=2)
    first = search.study.ask()
    first.set_user_attr(WHY, "enqueued")
    first.set_user_attr(PARAMETERS, {"train.lr": 0.1, "train.momentum": 0.5})
    first.suggest_float("train.lr", 0.001, 0.5)  # then its worker was lost
    search.verdicts.requeue(RunningTrial(first), "signal 9")
    old, new = search.study.trials
    assert (old.state, new.state) == (TrialState.FAIL, TrialState.WAITING)
    assert old.user_attrs["error"] == "signal 9; retried"
    assert new.user_attrs[RETRY_OF] == 0
    assert (new.user_attrs[WHY], new.user_attrs[TRIES]) == ("enqueued", 1)
    again = search.study.ask()
    assert again.suggest_float("train.momentum", 0, 0.95) == 0.5
    assert again.suggest_float("train.lr", 0.001, 0.5) == old.params["train.lr"]
    assert [(s.number, s.tries) for s in search.events] == [(0, 1)]
    assert search.verdicts.ended == 0


def test_tries_are_counted_over_all_of_them():
    search = Search(TRAINED, retries=2)
    for _ in range(3):
        search.verdicts.requeue(search.asked(), "signal 9")
    assert [t.state for t in search.study.trials] == [TrialState.FAIL] * 3
    assert search.last.user_attrs["error"] == "lost 3 times; the last time: signal 9"
    assert search.verdicts.ended == 1
