"""The driver of a search, with workers whose events are a list."""

import errno

import optuna
import pytest
from small_sweeps import SIMULATED, TRAINED, searched
from tests_support import event

from kdlab.errors import BadInput, ClusterError, RunStopped
from kdlab.events.ensemble import LocalModelLost
from kdlab.events.log import EventLog
from kdlab.experiment.folder import RunFolder
from kdlab.tuning import driver as module
from kdlab.tuning.driver import Driver
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder
from kdlab.tuning.verdicts import RUN


class Workers:
    """`ends(order)` gives the end of an order's trial; None: nothing yet."""

    def __init__(self, jobs=1, ends=lambda order: None):
        self.jobs, self.ends = jobs, ends
        self.at, self.pending, self.sent, self.stopped = {}, [], [], []

    def idle(self):
        return [w for w in range(self.jobs) if w not in self.at]

    def send(self, worker, order):
        self.sent.append((worker, order.number))
        self.at[worker] = order.number
        if (end := self.ends(order)) is not None:
            self.say(end)

    def say(self, event):
        self.pending.append(event)

    def stop(self, number):
        self.stopped.append(number)
        self.say(TrialEnded(number, "stopped", "stopped by the user"))

    def events(self):
        events, self.pending = self.pending, []
        for end in events:
            self.at = {w: n for w, n in self.at.items() if n != end.order}
            yield end


def top1(value):
    return lambda order: TrialEnded(
        order.number, "finished", None, {"validation_top1": value}
    )


class Search:
    def __init__(self, workers, tree=TRAINED, stop=lambda: False, make=None, **more):
        changes = {k: more.pop(k) for k in list(more) if k not in ("first", "trouble")}
        search = searched(tree, **changes)
        self.events, self.workers = [], workers
        self.study = optuna.create_study(
            directions=search.spec.directions(), sampler=optuna.samplers.RandomSampler(1)
        )
        self.driver = Driver(
            space=search.space, study=self.study, workers=workers, emit=self.events.append,
            make=make or (lambda number, values: TrialOrder(number=number)), stop=stop, **more,
        )  # fmt: skip

    def run(self):
        self.driver.run()
        return self

    def kinds(self):
        return [event.KIND for event in self.events]

    def states(self):
        return [t.state.name for t in self.study.trials]


def test_each_idle_worker_gets_a_trial_until_there_are_enough():
    workers = Workers(2, top1(50.0))
    search = Search(workers, trials=5).run()
    assert [number for _, number in workers.sent] == [0, 1, 2, 3, 4]
    assert search.states() == ["COMPLETE"] * 5
    assert search.driver.ms_per_trial > 0
    assert search.driver.ended_early is None
    (first, *_) = [e for e in search.events if e.KIND == "trial_started"]
    assert (first.why, first.values) == (
        "the experiment as it is",
        {"train.lr": 0.05, "train.momentum": 0.9},
    )


def test_before_any_trial_nothing_is_known_of_the_drivers_time():
    assert Search(Workers()).driver.ms_per_trial is None


def test_settings_of_others_come_after_the_experiment_and_before_what_is_enqueued():
    enqueued = {"train.lr": 0.2, "train.momentum": 0.1}
    earlier = {"train.lr": 0.3, "train.momentum": 0.2}
    search = Search(
        Workers(1, top1(1.0)), trials=4, enqueue=[enqueued], first=[("earlier", earlier)]
    ).run()
    whys = [e.why for e in search.events if e.KIND == "trial_started"]
    assert whys == ["the experiment as it is", "earlier", "enqueued", "suggested"]


def test_an_experiment_outside_its_space_is_not_tried_and_that_is_said():
    narrow = {"train.lr": {"low": 0.2, "high": 0.5}}
    search = Search(Workers(1, top1(1.0)), space=narrow, trials=1).run()
    assert "outside the space" in search.events[0].message


def test_a_grid_is_as_many_trials_as_it_has_points():
    grid = {"train.momentum": {"choices": [0.5, 0.9]}, "train.lr": {"choices": [0.05, 0.1]}}
    changes = {"space": grid, "sampler": {"name": "grid"}, "trials": None}
    search = Search(Workers(2, top1(1.0)), **changes).run()
    points = {tuple(sorted(t.user_attrs["set"].items())) for t in search.study.trials}
    assert len(points) == len(search.study.trials) == 4


def test_values_that_make_no_spec_are_a_failure_and_nobody_waits_for_it():
    def make(number, values):
        if number == 1:
            raise BadInput("ut must hold more")
        return TrialOrder(number=number)

    search = Search(Workers(1, top1(1.0)), make=make, trials=3).run()
    assert search.states() == ["COMPLETE", "FAIL", "COMPLETE"]
    assert search.study.trials[1].user_attrs["error"] == "ut must hold more"


def test_a_trials_folder_is_noted(tmp_path):
    RunFolder(tmp_path).write_status(state="starting")

    def make(number, values):
        return TrialOrder(number=number, run=str(tmp_path))

    search = Search(Workers(1, top1(1.0)), make=make, trials=1).run()
    assert search.study.trials[0].user_attrs[RUN] == str(tmp_path)


def test_what_a_lost_worker_had_written_is_the_trials_result(tmp_path):
    result = {"validation_top1": 77.0}

    def make(number, values):
        folder = RunFolder(tmp_path / str(number))
        folder.path.mkdir()
        return TrialOrder(number=number, run=str(folder.path))

    def lost(order):
        if order.number == 0:  # it came to its end, and then died
            RunFolder(tmp_path / "0").write_status(state="finished", result=result)
            return TrialEnded(0, "lost", "signal 9")
        if order.number == 1:
            return TrialEnded(1, "lost", "signal 9")
        return top1(50.0)(order)

    search = Search(Workers(1, lost), make=make, trials=2).run()
    assert search.study.trials[0].values == [77.0]
    assert search.states() == ["COMPLETE", "FAIL", "COMPLETE"]
    assert search.study.trials[2].user_attrs["retry_of"] == 1
    assert search.kinds().count("local_model_lost") == 2


def test_a_simulation_that_was_lost_has_left_nothing():
    lost = [TrialEnded(0, "lost", "signal 9")]
    good = {"teachers": 1, "volume_max": 1, "of_n_training": 1}

    def ends(order):
        return lost.pop() if lost else TrialEnded(order.number, "finished", None, good)

    assert Search(Workers(1, ends), SIMULATED, trials=1).run().states() == [
        "FAIL",
        "COMPLETE",
    ]


def test_a_worker_that_is_lost_without_a_trial_costs_none():
    workers = Workers(1, top1(1.0))
    workers.say(TrialEnded(None, "lost", "no torch there"))
    search = Search(workers, trials=1).run()
    assert search.states() == ["COMPLETE"]
    (lost,) = [e for e in search.events if isinstance(e, LocalModelLost)]
    assert (lost.order, lost.why) == (None, "no torch there")


def test_a_full_disk_of_a_worker_ends_the_search_and_not_the_trial():
    def full(order):
        return TrialEnded(order.number, "no_room", "OSError: [Errno 28] full")

    search = Search(Workers(1, full))
    with pytest.raises(OSError, match=r"trial 0") as error:
        search.run()
    assert error.value.errno == errno.ENOSPC
    assert search.states()[1:] == ["WAITING"]


def test_a_failure_is_the_trials_unless_all_others_would_fail_too():
    def fails(order):
        return TrialEnded(order.number, "failed", "no soft labels")

    search = Search(Workers(1, fails), trials=2).run()
    assert search.states() == ["FAIL", "FAIL"]
    doomed = Search(Workers(1, fails), trouble=lambda: "The pool is gone.")
    with pytest.raises(ClusterError, match=r"The pool is gone.*no soft labels"):
        doomed.run()
    assert doomed.states() == ["FAIL", "WAITING"]


def test_a_stop_has_trials_save_and_they_are_tried_again():
    looks = iter([False, True])
    workers = Workers(2)
    search = Search(workers, stop=lambda: next(looks))
    with pytest.raises(RunStopped, match="the study has all trials that ended"):
        search.run()
    assert workers.stopped == [0, 1]
    assert search.states() == ["FAIL", "FAIL", "WAITING", "WAITING"]


def test_a_trial_that_does_not_stop_in_time_is_left(monkeypatch):
    monkeypatch.setattr(Driver, "saves_s", 0.0)
    looks = iter([False, True])
    workers = Workers(1)
    workers.stop = workers.stopped.append  # it hears it and goes on
    search = Search(workers, stop=lambda: next(looks))
    with pytest.raises(RunStopped):
        search.run()
    assert search.states() == ["RUNNING"]  # taken up by the next driver


def test_no_trial_begins_after_the_time_limit():
    search = Search(Workers(3, top1(1.0)), time_limit_s=1e-9, trials=9).run()
    assert search.states() == ["COMPLETE"]
    assert search.driver.ended_early == "the time limit of 1e-09 s"


# The pruner


class Pruned(Search):
    """Each trial's events lie in a folder before it begins."""

    def __init__(self, folder, epochs, monkeypatch, **more):
        monkeypatch.setattr(module, "_WATCH_S", 0.0)

        def make(number, values):
            run = folder / str(number)
            run.mkdir()
            log = EventLog(run / "events.jsonl")
            for member, value in epochs:
                log.emit(event("epoch_done", member=member, validation_top1=value))
            return TrialOrder(number=number, run=str(run))

        pruner = {"name": "threshold", "lower": 50.0, "n_warmup_steps": 2}
        super().__init__(Workers(1), make=make, pruner=pruner, trials=1, **more)
        self.study.pruner = optuna.pruners.ThresholdPruner(lower=50.0, n_warmup_steps=1)


def test_the_pruner_sees_each_epoch_of_the_student_and_stops_the_worst(
    tmp_path, monkeypatch
):
    epochs = [("none/seed0", 10.0), ("none/seed0", 20.0), ("none/seed0", 30.0)]
    search = Pruned(tmp_path, epochs, monkeypatch).run()
    assert search.workers.stopped == [0]
    assert search.states() == ["PRUNED"]
    (stopping,) = [e for e in search.events if e.KIND == "trial_stopping"]
    assert (stopping.number, stopping.epoch, stopping.value) == (0, 1, 10.0)
    assert search.study.trials[0].intermediate_values == {1: 10.0}


def test_epochs_of_a_teacher_and_of_what_it_is_compared_with_do_not_count(
    tmp_path, monkeypatch
):
    epochs = [("teacher", 1.0), ("none/seed0", 2.0), ("served/seed0", None)]
    epochs += [("served/seed0", 60.0), ("served/seed0", 40.0)]
    both = {"overrides": {"compare": ["none", "served"]}, "experiment": "smoke/served"}
    search = Pruned(tmp_path, epochs, monkeypatch, **both).run()
    assert search.study.trials[0].intermediate_values == {1: 60.0, 2: 40.0}
    assert search.states() == ["PRUNED"]


def test_without_a_pruner_events_are_not_read(tmp_path, monkeypatch):
    search = Pruned(tmp_path, [("none/seed0", 10.0)], monkeypatch)
    search.driver.spec = searched(TRAINED, trials=1).spec
    search.workers.ends = top1(10.0)
    search.run()
    assert search.study.trials[0].intermediate_values == {}
