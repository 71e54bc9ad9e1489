"""Runs around a search: the best again with fresh seeds, and real ones beside simulated."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from optuna.trial import create_trial
from scripted_sweeps import Hosts, top1, train
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.errors import BadInput, ClusterError, NotFoundError, RunStopped
from kdlab.experiment.folder import RunFolder, RunStatus
from kdlab.testing.scripted import ScriptedChild
from kdlab.tuning.folder import SweepFolder
from kdlab.tuning.process import SweepProcess
from kdlab.tuning.repeat import confirmed, rates, real_run
from kdlab.tuning.trial_messages import TrialEnded
from kdlab.tuning.trial_notes import METRICS, VALUES
from kdlab.tuning.trial_workers import TrialWorkers


@pytest.fixture
def made(elsewhere):
    """A sweep before its search, with what it said."""

    def make(tree, stop=lambda: False, start_run=None, **changes):
        search = searched(tree, **changes)
        folder = SweepFolder(elsewhere / "runs" / "sweeps" / "s")
        if not folder.spec.is_file():
            with folder.held(SystemExit("another process has it")):
                search._write(folder, {})
        sweep = SweepProcess(folder, stop, start_run=start_run)
        said = []
        sweep.log.emit = said.append
        sweep.said = said
        return sweep

    return make


def chosen(values, tops, **metrics):
    attributes = {VALUES: values, METRICS: metrics}
    trial = create_trial(values=tops, user_attrs=attributes)
    trial.number = 3
    return trial


BEST = chosen({"train.lr": 0.125, "train.momentum": 0.5}, [87.5])


def again(sweep, work, jobs=2, seeds=(11, 12)):
    """`confirmed` with workers that carry out an order by a function."""
    hosts = Hosts(work)
    workers = TrialWorkers(
        jobs, sweep.folder.path, simulates=False, gpus=(), start=hosts.start
    )
    return confirmed(sweep, workers, BEST, seeds)


def kinds(sweep):
    return [event.KIND for event in sweep.said]


def expected(lr, *seeds):
    return [top1({"train": {"lr": lr}, "seeds": [seed]}) for seed in seeds]


def test_both_settings_are_run_with_each_seed(made):
    sweep = made(TRAINED)
    found = again(sweep, train)
    assert found.best.values == expected(0.125, 11, 12)
    assert found.as_it_is.values == expected(0.05, 11, 12)
    assert found.best.mean == sum(expected(0.125, 11, 12)) / 2
    assert found.best.std == pytest.approx(0.5**0.5)  # of two that lie one apart
    assert (found.optimistic, found.seeds, found.failed) == (87.5, [11, 12], {})
    names = {path.name for path in (sweep.folder.path / "confirm").iterdir()}
    assert names == {
        "best-3-seed11-0", "best-3-seed12-0", "as-it-is-seed11-0", "as-it-is-seed12-0",
    }  # fmt: skip
    assert kinds(sweep).count("repeat_done") == 4


def test_one_seed_has_no_spread(made):
    found = again(made(TRAINED), train, seeds=(11,))
    assert (found.best.std, len(found.best.values)) == (None, 1)


def test_what_has_ended_is_not_run_again(made):
    again(made(TRAINED), train)
    sweep = made(TRAINED)

    def never(child, order):
        raise AssertionError("it is there already")

    assert again(sweep, never).best.values == expected(0.125, 11, 12)
    assert kinds(sweep) == ["confirming"]
    assert sweep.said[0].runs == 0


def test_a_lost_run_is_run_again_in_another_folder(made):
    died = []

    def mortal(child, order):
        if not died:
            died.append(order.run)
            child.die()
            return None
        return train(child, order)

    sweep = made(TRAINED)
    found = again(sweep, mortal)
    assert found.failed == {}
    assert len(found.best.values) == 2
    names = sorted(p.name for p in (sweep.folder.path / "confirm").iterdir())
    assert names[:4:3] == ["as-it-is-seed11-0", "best-3-seed11-1"]
    assert [e.state for e in sweep.said if e.KIND == "repeat_done"].count("lost") == 1


def test_what_is_lost_too_often_is_left_out_and_said(made):
    def mortal(child, order):
        if "best-3-seed11" in order.run:
            child.die()
            return None
        return train(child, order)

    sweep = made(TRAINED, retries=1)
    found = again(sweep, mortal)
    assert list(found.failed) == ["best-3-seed11"]
    assert found.best.values == expected(0.125, 12)
    (warned,) = [e.message for e in sweep.said if e.KIND == "warning"]
    assert "best-3-seed11-1 did not confirm" in warned


def test_a_failure_is_not_tried_again(made):
    def failing(child, order):
        if "as-it-is" in order.run:
            return TrialEnded(order.number, "failed", "no soft labels")
        return train(child, order)

    found = again(made(TRAINED), failing)
    assert found.failed == dict.fromkeys(
        ("as-it-is-seed11", "as-it-is-seed12"), "no soft labels"
    )
    assert (found.as_it_is.mean, found.as_it_is.values) == (None, [])


def test_a_stop_reaches_those_under_way(made):
    looks = iter([False, True])
    sweep = made(TRAINED, stop=lambda: next(looks))
    told = []

    def endless(child, order):
        told.append(type(order).__name__)

    with pytest.raises(RunStopped, match="while the best was confirmed"):
        again(sweep, endless)
    assert told == ["TrialOrder", "TrialOrder", "StopTrial", "StopTrial"]


def test_workers_that_never_come_up_end_it(made):
    def start(module, config, log, pulse):
        child = ScriptedChild()
        child.die(1)
        return child

    sweep = made(TRAINED)
    workers = TrialWorkers(1, sweep.folder.path, simulates=False, gpus=(), start=start)
    with pytest.raises(ClusterError, match="to confirm the best does not come up"):
        confirmed(sweep, workers, BEST, (11,))


# Real runs beside simulated ones

POOL = {"type": "cluster/emulated_pool", "teachers": 2, "t_t": 300}
REAL = {
    "experiment": "smoke/served",
    "overrides": {"teacher_pool": POOL, "seeds": [0, 1, 2]},
    "keys": {"cases.0.teachers": "teacher_pool.teachers", "lt": "soft_labels.lt"},
    "batches": ["soft_labels.lt"],
    "calibrate": {
        "cases.0.student.samples_per_second": "student",
        "cases.0.teacher.samples_per_second": "teacher",
    },
}
FAST = chosen({"cases.0.teachers": 2, "lt": 4}, [2, 40], of_n_training=0.95)


@dataclass
class FakeRun:
    """A run that has ended, or is at work for so many looks."""

    path: Path
    result: dict
    state_at_last: str = "finished"
    looks: int = 0
    killed: int = 0
    status: RunStatus = field(default_factory=lambda: RunStatus(error="out of memory"))

    @property
    def state(self):
        self.looks -= 1
        return "running" if self.looks >= 0 else self.state_at_last

    def kill(self):
        self.killed += 1


def row(source, seed, rate):
    return {"source": source, "seed": seed, "samples_per_second": rate}


@pytest.fixture
def runs(made, tmp_path):
    """(A simulated sweep, its experiments as they were started); each run is `result`."""

    def make(rows, stop=lambda: False, **more):
        result = {"runs": rows, "seeds": [0, 1, 2], "run_dir": "/runs/real"}
        asked = []

        def start_run(experiment):
            asked.append(experiment)
            return FakeRun(tmp_path / "real", result, **more)

        sweep = made(SIMULATED, stop=stop, start_run=start_run, real=REAL)
        return sweep, asked

    return make


def test_rates_of_this_machine_are_measured_without_a_teacher(runs):
    sweep, asked = runs([row("none", k, rate) for k, rate in enumerate((900, 100, 800))])
    assert rates(sweep, sweep.spec.real) == {
        "cases.0.student.samples_per_second": 800,  # the median
        "cases.0.teacher.samples_per_second": 300.0,
    }
    (experiment,) = asked
    assert experiment.resolved["compare"] == ["none"]
    assert experiment.resolved["tracking"]["enabled"] is False
    assert kinds(sweep) == ["real_run"]


def test_the_best_is_measured_beside_what_was_simulated(runs):
    rows = [row("none", k, 1000) for k in range(3)]
    rows += [row("served", k, rate) for k, rate in enumerate((940, 500, 960))]
    sweep, asked = runs(rows)
    found = real_run(sweep, sweep.spec.real, FAST)
    batch = asked[0].resolved["train"]["batch"]
    assert found.set == {"teacher_pool.teachers": 2, "soft_labels.lt": 4 * batch}
    assert asked[0].resolved["compare"] == ["none", "served"]
    assert asked[0].resolved["soft_labels"]["lt"] == 4 * batch
    assert found.of_n_training.each == [0.94, 0.5, 0.96]  # seed by seed
    assert (found.of_n_training.measured, found.of_n_training.simulated) == (0.94, 0.95)
    assert found.off == pytest.approx(0.01)
    assert found.holds
    slow = chosen(FAST.user_attrs[VALUES], [2, 40], of_n_training=0.5)
    assert not real_run(sweep, sweep.spec.real, slow).holds


def test_a_real_run_that_fails_ends_the_sweep_with_its_error(runs):
    sweep, _ = runs([], state_at_last="failed")
    with pytest.raises(ClusterError, match=r"real failed: out of memory"):
        rates(sweep, sweep.spec.real)


def test_a_stop_ends_the_real_run(runs, tmp_path):
    sweep, _ = runs([], stop=lambda: True, looks=5)
    with pytest.raises(RunStopped, match="during a real run"):
        rates(sweep, sweep.spec.real)
    left = json.loads((sweep.folder.path / "real_run.json").read_text())
    assert left == {"run": str(tmp_path / "real")}


def test_a_real_run_of_a_driver_that_was_killed_is_ended_first(runs, tmp_path, monkeypatch):
    """It would disturb this one."""
    order = []

    class Left:
        def __init__(self, folder):
            assert isinstance(folder, RunFolder)
            order.append(("left", folder.path))

        def kill(self):
            order.append("killed")

    monkeypatch.setattr("kdlab.tuning.repeat.Run", Left)
    sweep, asked = runs([row("none", 0, 900)])
    (sweep.folder.path / "real_run.json").write_text(json.dumps({"run": "/runs/old"}))
    rates(sweep, sweep.spec.real)
    assert order == [("left", Path("/runs/old")), "killed"]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"keys": {"lt": "soft_labels.ltt"}}, BadInput, r"soft_labels.ltt.*Nearest: soft_l"),
        ({"keys": {"ltt": "soft_labels.lt"}}, NotFoundError, r"no key 'ltt'"),
        ({"experiment": "smoke/none", "overrides": {}, "keys": {}, "batches": []}, BadInput,
         r"no served soft labels"),
        ({"overrides": {}}, BadInput, r"from an emulated pool"),
    ],
)  # fmt: skip
def test_what_a_real_run_needs_is_checked_before_anything_starts(changes, error, words):
    with pytest.raises(error, match=f"(?s){words}"):
        searched(SIMULATED, real=REAL | changes)
