"""Runs around a search: the best again with fresh seeds."""

import pytest
from optuna.trial import create_trial
from scripted_sweeps import Hosts, top1, train
from small_sweeps import TRAINED, searched

from kdlab.errors import ClusterError, RunStopped
from kdlab.testing.scripted import ScriptedChild
from kdlab.tuning.folder import SweepFolder
from kdlab.tuning.process import SweepProcess
from kdlab.tuning.repeat import Confirmation
from kdlab.tuning.trial_workers import TrialEnded, TrialWorkers
from kdlab.tuning.verdicts import METRICS, VALUES


@pytest.fixture
def make_sweep(elsewhere):
    """Make a sweep before its search; `emitted` has its events."""

    def make(tree, stop=lambda: False, **changes):
        search = searched(tree, **changes)
        folder = SweepFolder(elsewhere / "runs" / "sweeps" / "s")
        if not folder.spec.is_file():
            folder.path.mkdir(parents=True)
            search._write(folder, {})
        sweep = SweepProcess(folder, stop)
        sweep.emitted = []
        sweep.log.emit = sweep.emitted.append
        return sweep

    return make


def chosen(values, tops, **metrics):
    attributes = {VALUES: values, METRICS: metrics}
    trial = create_trial(values=tops, user_attrs=attributes)
    trial.number = 3
    return trial


BEST = chosen({"train.lr": 0.125, "train.momentum": 0.5}, [87.5])


def repeats(sweep, workers):
    make, emit = sweep.run_order, sweep.log.emit
    return Confirmation(make, workers, sweep.folder, emit, sweep.stop)


def again(sweep, work, jobs=2, seeds=(11, 12)):
    """Confirm the best, with workers that carry out each order by calling `work`."""
    hosts = Hosts(work)
    workers = TrialWorkers(
        jobs, sweep.folder.path, simulates=False, gpus=(), start=hosts.start
    )
    return repeats(sweep, workers).confirmed(BEST, seeds)


def kinds(sweep):
    return [event.KIND for event in sweep.emitted]


def expected(lr, *seeds):
    return [top1({"train": {"lr": lr}, "seeds": [seed]}) for seed in seeds]


def test_both_settings_are_run_with_each_seed(make_sweep):
    sweep = make_sweep(TRAINED)
    rerun = again(sweep, train)
    assert (rerun.best.values, rerun.best.seeds) == (expected(0.125, 11, 12), [11, 12])
    assert rerun.as_it_is.values == expected(0.05, 11, 12)
    assert rerun.best.mean == sum(expected(0.125, 11, 12)) / 2
    assert rerun.best.std == pytest.approx(0.5**0.5)  # of two that lie one apart
    assert (rerun.optimistic, rerun.seeds, rerun.failed) == (87.5, [11, 12], {})
    names = {path.name for path in (sweep.folder.path / "confirm").iterdir()}
    assert names == {
        "best-3-seed11-0", "best-3-seed12-0", "as-it-is-seed11-0", "as-it-is-seed12-0",
    }  # fmt: skip
    assert kinds(sweep).count("repeat_done") == 4


def test_one_seed_has_no_spread(make_sweep):
    rerun = again(make_sweep(TRAINED), train, seeds=(11,))
    assert (rerun.best.std, len(rerun.best.values)) == (None, 1)


def test_what_has_ended_is_not_run_again(make_sweep):
    again(make_sweep(TRAINED), train)
    sweep = make_sweep(TRAINED)

    def never(child, order):
        raise AssertionError("it is there already")

    assert again(sweep, never).best.values == expected(0.125, 11, 12)
    assert kinds(sweep) == ["confirming"]
    assert sweep.emitted[0].runs == 0


def test_a_lost_run_is_run_again_in_another_folder(make_sweep):
    died = []

    def mortal(child, order):
        if not died:
            died.append(order.run)
            child.die()
            return None
        return train(child, order)

    sweep = make_sweep(TRAINED)
    rerun = again(sweep, mortal)
    assert rerun.failed == {}
    assert len(rerun.best.values) == 2
    names = sorted(p.name for p in (sweep.folder.path / "confirm").iterdir())
    assert names[:4:3] == ["as-it-is-seed11-0", "best-3-seed11-1"]
    assert [e.state for e in sweep.emitted if e.KIND == "repeat_done"].count("lost") == 1


def test_what_is_lost_too_often_is_left_out_and_said(make_sweep):
    def mortal(child, order):
        if "best-3-seed11" in order.run:
            child.die()
            return None
        return train(child, order)

    sweep = make_sweep(TRAINED, retries=1)
    rerun = again(sweep, mortal)
    assert list(rerun.failed) == ["best-3-seed11"]
    assert rerun.best.values == expected(0.125, 12)
    (warned,) = [e.message for e in sweep.emitted if e.KIND == "warned"]
    assert "best-3-seed11-1 did not confirm" in warned


def test_a_failure_is_not_tried_again(make_sweep):
    def failing(child, order):
        if "as-it-is" in order.run:
            return TrialEnded(order.number, "failed", "no soft labels")
        return train(child, order)

    rerun = again(make_sweep(TRAINED), failing)
    assert rerun.failed == dict.fromkeys(
        ("as-it-is-seed11", "as-it-is-seed12"), "no soft labels"
    )
    assert (rerun.as_it_is.mean, rerun.as_it_is.values) == (None, [])


def test_a_stop_reaches_those_under_way(make_sweep):
    looks = iter([False, True])
    sweep = make_sweep(TRAINED, stop=lambda: next(looks))
    orders = []

    def endless(child, order):
        orders.append(type(order).__name__)

    with pytest.raises(RunStopped, match="during the confirmation"):
        again(sweep, endless)
    assert orders == ["TrialOrder", "TrialOrder", "StopTrial", "StopTrial"]


def test_workers_that_never_come_up_end_it(make_sweep):
    def start(module, config, log, pulse):
        child = ScriptedChild()
        child.die(1)
        return child

    sweep = make_sweep(TRAINED)
    workers = TrialWorkers(1, sweep.folder.path, simulates=False, gpus=(), start=start)
    with pytest.raises(ClusterError, match="for trials does not start"):
        repeats(sweep, workers).confirmed(BEST, (11,))
