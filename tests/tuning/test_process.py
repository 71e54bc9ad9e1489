"""A sweep from inside, from its folder to its result: trials are simulations, or a script."""

import errno
import itertools
import random
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.trial import TrialState
from scripted_sweeps import Hosts, SweepFromInside, after, spec_at, top1, train
from small_sweeps import SIMULATED, TRAINED, searched
from tests_support import event

import kdlab
from kdlab.errors import (
    BadInput,
    ClusterError,
    RunFailed,
    RunStopped,
    SchedulerUnreachable,
)
from kdlab.events.log import EventLog, select
from kdlab.soft_labels.source import PoolAddress
from kdlab.testing.scripted import ScriptedChild
from kdlab.tuning import attach_sweep, figures, process
from kdlab.tuning.trial_messages import StopTrial, TrialEnded, TrialOrder
from kdlab.tuning.trial_worker import simulate


@pytest.fixture
def here(elsewhere, monkeypatch):
    """An empty folder; no picture is drawn, which is most of what a small sweep takes."""
    monkeypatch.setattr(figures, "draw", lambda study, spec, folder, emit: [])
    return elsewhere


def simulated(child, order):
    return simulate(order)


def events(inside, kind):
    return list(select(inside.folder.events, kind))


def counted(sweep):
    """States of trials; those that were tried again left out."""
    trials = sweep.study.trials
    again = {t.user_attrs.get("retry_of") for t in trials}
    return [t.state for t in trials if t.number not in again]


def told(sweep):
    """Values of the trials that have ended well, by number."""
    return {
        t.number: t.values for t in sweep.study.trials if t.state == TrialState.COMPLETE
    }


# What comes of it


def test_a_simulated_sweep_leaves_its_best_as_a_card_and_its_pictures(elsewhere):
    few = {key: SIMULATED["space"][key] for key in ("cases.0.teachers", "lt")}
    inside = SweepFromInside(SIMULATED, simulated, space=few)
    sweep, result = inside.sweep, inside.sweep.result
    assert (inside.code, sweep.state) == (0, "finished")
    assert {"study", "best", "confirmed", "trials", "driver_ms_per_trial"} <= set(result)
    assert {"sweep_dir", "status"} <= set(result)
    assert result["trials"]["complete"] == 12
    found = result["best"]["metrics"]
    assert found["of_n_training"] >= 0.9
    rows = [row for row in sweep.rows() if row.feasible]
    assert all(row.values["teachers"] >= found["teachers"] for row in rows)
    card = yaml.safe_load((sweep.path / "best/registry/simulations/small.yaml").read_text())
    assert card["cases"][0]["teachers"] == found["teachers"]
    assert "teachers" in sweep.table()
    assert "data:image/svg+xml" in sweep._repr_html_()
    drawn = {p.name for p in sweep.pictures()}
    assert {"history.png", "pareto.png"} <= drawn
    assert drawn == {Path(p).name for p in result["figures"]}
    assert [e["state"] for e in events(inside, "sweep_done")] == ["finished"]


def test_the_best_of_an_earlier_sweep_is_tried_first(here):
    first = SweepFromInside(SIMULATED, simulated).sweep.result
    warm = {"study": "small", "best": 2}
    wider = SIMULATED["space"] | {"per_teacher": {"low": 1, "high": 4}}
    changes = {"space": wider, "warm_start": warm, "trials": 5}
    again = SweepFromInside(SIMULATED, simulated, "again", **changes).sweep
    (best, _) = [row for row in again.rows() if row.why == "of an earlier sweep"]
    assert best.set == first["best"]["set"] | {"per_teacher": 2}  # the card's own
    assert again.result["trials"]["complete"] == 5
    narrow = SIMULATED["space"] | {"lt": {"low": 100, "high": 200}}
    with pytest.raises(BadInput, match=r"(?s)Nothing of the sweep small.*lt is "):
        searched(SIMULATED, space=narrow, warm_start=warm).start("other")
    with pytest.raises(kdlab.KdlabError, match=r"no sweep .smalls..*Nearest: small"):
        searched(SIMULATED, warm_start={"study": "smalls"}).start("other")
    assert not (again.path.parent / "other").exists()


def test_a_sweep_finds_confirms_and_keeps_the_best(here):
    def with_weights(child, order):
        network = Path(order.run) / "members/none/seed0/student.safetensors"
        network.parent.mkdir(parents=True)
        network.write_bytes(b"a network")
        return train(child, order)

    seeds = {"confirm": {"seeds": [11, 12]}}
    inside = SweepFromInside(TRAINED, with_weights, **seeds)
    sweep, result = inside.sweep, inside.sweep.result
    best = result["best"]
    assert best["values"]["validation_top1"] == max(v[0] for v in told(sweep).values())
    again = result["confirmed"]
    assert again["seeds"] == [11, 12]
    as_it_is = [top1({"seeds": [s], "train": {"lr": 0.05}}) for s in (11, 12)]
    assert again["as_it_is"]["values"] == as_it_is
    found = {"lr": best["set"]["train.lr"]}
    assert again["best"]["values"] == [
        top1({"seeds": [s], "train": found}) for s in (11, 12)
    ]
    assert again["optimistic"] == best["values"]["validation_top1"]
    assert again["failed"] == {}
    saved = yaml.safe_load((sweep.path / "best/configs/small.yaml").read_text())
    assert saved["train"]["lr"] == best["set"]["train.lr"]
    assert {p.parent.name for p in sweep.save("tuned")} == {"configs", "train"}
    assert (
        kdlab.load("tuned").resolved["train"]["momentum"] == best["set"]["train.momentum"]
    )
    with pytest.raises(BadInput, match=r"is there already"):
        sweep.save("tuned")
    kept = {p.parents[3] for p in sweep.path.glob("trials/*/**/*.safetensors")}
    assert kept == {Path(best["run_dir"])}  # the weights of the others are gone
    (said,) = events(inside, "searched")
    assert said["best"] == best["number"]


def test_a_trial_trains_all_seeds_without_mlflow_of_its_own(here):
    inside = SweepFromInside(TRAINED, train, seeds=[3, 4], trials=1)
    spec = spec_at(TrialOrder(number=0, run=str(inside.folder.trial(0))))
    assert spec["seeds"] == [3, 4]
    assert spec["tracking"]["enabled"] is False
    assert inside.sweep.result["best"]["values"]["validation_top1"] == top1(spec)


def test_sqlite_and_a_time_limit(here):
    limits = {"storage": "sqlite", "time_limit_s": 1e-6, "trials": 5000}
    inside = SweepFromInside(SIMULATED, simulated, jobs=1, **limits)
    result = inside.sweep.result
    assert result["ended_early"] == "the time limit of 1e-06 s"
    assert result["trials"]["complete"] == 1  # none begins later, what began ends
    (known,) = optuna.get_all_study_summaries(f"sqlite:///{result['storage']}")
    assert known.n_trials == result["trials"]["total"]


# What may go wrong


class KilledError(BaseException):
    """Nothing of the driver's own runs after it."""


def killed_after(looks):
    count = itertools.count()

    def stop():
        if next(count) >= looks:
            raise KilledError
        return False

    return stop


MANY = {"trials": 16, "jobs": 2}


def test_a_driver_killed_at_any_moment_loses_nothing(here):
    """What was told stays told; trials under way are tried again; the number is kept."""
    chance, known = random.Random(5), {}
    for _ in range(4):
        answers = itertools.count()

        def slowly(child, order, at=answers):
            """Some trials are under way when the driver dies."""
            return simulate(order) if next(at) % 3 else None

        stop = killed_after(chance.randrange(1, 5))
        with pytest.raises(KilledError):
            SweepFromInside(SIMULATED, slowly, stop=stop, **MANY)
        now = told(attach_sweep("small"))
        assert {n: now[n] for n in known} == known
        known = now
    inside = SweepFromInside(SIMULATED, simulated, **MANY)
    assert known
    assert inside.sweep.result["trials"]["complete"] == 16
    assert inside.sweep.result["trials"]["tried_again"] >= 1
    assert {n: told(inside.sweep)[n] for n in known} == known
    assert counted(inside.sweep) == [TrialState.COMPLETE] * 16


def test_a_full_disk_loses_no_trial(here):
    """The journal cannot grow; with room again the same command goes on."""
    count = itertools.count()

    def full():
        if next(count) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return False

    inside = SweepFromInside(SIMULATED, simulated, stop=full, **MANY)
    assert (inside.code, inside.sweep.state) == (1, "failed")
    assert "The disk did not take" in inside.sweep.status.error
    assert "those under way are tried again" in inside.sweep.status.error
    with pytest.raises(RunFailed, match=r"kdlab sweep .*--study small"):
        _ = inside.sweep.result
    known = told(inside.sweep)
    assert len(known) > 5
    again = SweepFromInside(SIMULATED, simulated, **MANY).sweep
    assert again.result["trials"]["complete"] == 16
    assert {n: told(again)[n] for n in known} == known


def test_a_full_disk_of_a_worker_ends_the_sweep_and_no_trial(here):
    """Its weights cannot be written: that is no fault of the trial."""

    def full(child, order):
        return TrialEnded(order.number, "no_room", "OSError: [Errno 28] No space left")

    inside = SweepFromInside(TRAINED, full, trials=4, jobs=1)
    assert inside.sweep.state == "failed"
    assert "The disk did not take" in inside.sweep.status.error
    assert "(trial 0)" in inside.sweep.status.error
    assert TrialState.FAIL not in counted(inside.sweep)
    again = SweepFromInside(TRAINED, train, trials=4, jobs=1).sweep
    assert counted(again) == [TrialState.COMPLETE] * 4


def test_a_killed_worker_costs_its_trial_alone(here):
    deaths = [0, 1, 2]

    def mortal(child, order):
        if deaths and deaths.pop(0) == 0:
            child.die()
            return None
        return train(child, order)

    inside = SweepFromInside(TRAINED, mortal, trials=6, jobs=2)
    assert [e["order"] for e in events(inside, "worker_lost")] == [0]
    assert counted(inside.sweep) == [TrialState.COMPLETE] * 6
    assert inside.sweep.result["trials"]["tried_again"] == 1
    assert len(inside.hosts.children) == 3  # another one took its place


def test_workers_that_never_come_up_end_the_sweep(here):
    class Stillborn(Hosts):
        def start(self, module, config, log, pulse):
            self.children.append(ScriptedChild())
            self.children[-1].die(1)
            return self.children[-1]

    inside = SweepFromInside(TRAINED, train, hosts=Stillborn(train), trials=1, jobs=1)
    assert inside.code == ClusterError.exit_code
    assert "A worker for trials does not come up" in inside.sweep.status.error
    assert len(inside.hosts.children) == 3


def test_workers_of_a_cluster_are_started_by_its_hosts(here, monkeypatch):
    """Where a machine is lost, its trial is done by another one."""
    hosted, at = [], []

    def mortal(child, order):
        at.append(order.number)
        if len(at) == 2:
            child.die()
            return None
        return train(child, order)

    class DaskHosts(Hosts):
        def __init__(self, address, tls):
            super().__init__(mortal)
            hosted.append((address, tls, self))
            self.closed = False

        def close(self):
            self.closed = True

    monkeypatch.setattr(process, "DaskHosts", DaskHosts)
    cluster = {"address": "tcp://127.0.0.1:9", "insecure": True}
    inside = SweepFromInside(TRAINED, train, trials=6, jobs=2, workers=cluster)
    ((address, tls, hosts),) = hosted
    assert (address, tls) == ("tcp://127.0.0.1:9", None)
    assert inside.hosts.children == []
    assert hosts.closed
    assert inside.sweep.state == "finished", inside.sweep.status.error
    assert counted(inside.sweep) == [TrialState.COMPLETE] * 6
    assert [e["order"] for e in events(inside, "worker_lost")] == [1]


def test_a_stop_ends_gracefully_and_the_same_command_goes_on(here):
    def until_told(child, order):
        """The first is under way until it is told to stop; all others end at once."""
        if isinstance(order, StopTrial):
            return TrialEnded(order.number, "stopped", "stopped by the user")
        return None

    changes = {"trials": 4, "jobs": 2}
    inside = SweepFromInside(TRAINED, until_told, stop=after(3), **changes)
    sweep = inside.sweep
    assert (inside.code, sweep.state) == (RunStopped.exit_code, "stopped")
    with pytest.raises(RunStopped, match=r"goes on with"):
        _ = sweep.result
    assert all(not child.alive() for child in inside.hosts.children)
    waiting = [t for t in sweep.study.trials if t.state == TrialState.WAITING]
    assert len(waiting) == 2
    again = SweepFromInside(TRAINED, train, **changes).sweep
    assert again.state == "finished", again.status.error
    assert counted(again) == [TrialState.COMPLETE] * 4
    assert attach_sweep("small").result == again.result


def test_failed_trials_are_kept_with_their_error(here):
    """A batch that the pool's upper threshold cannot hold is no spec; the search goes on."""
    batches = {"train.batch": {"choices": [16, 4096]}}
    overrides = {"soft_labels": {"type": "cluster/served", "ut": 512}, "train.epochs": 1}
    inside = SweepFromInside(
        TRAINED,
        train,
        experiment="smoke/served",
        overrides=overrides,
        space=batches,
        sampler={"name": "grid"},
        defaults=False,
    )
    sweep = inside.sweep
    assert sorted(s.name for s in counted(sweep)) == ["COMPLETE", "FAIL"]
    (failed,) = [row for row in sweep.rows() if row.state == "fail"]
    assert "must hold more than one" in failed.error
    assert "soft_labels.ut: is 512" in sweep.table()


@pytest.fixture
def pool(monkeypatch):
    """Stands in for the teachers that a sweep has in common: what became of it."""
    seen = {"started": 0, "closed": 0}

    class Pools:
        def __init__(self, run, setup, emit, stop):
            seen["folder"] = run.path

        def whole(self):
            seen["started"] += 1
            return PoolAddress(address="tcp://127.0.0.1:9", teacher="t", tls=None)

        def close(self):
            seen["closed"] += 1

    monkeypatch.setattr(process, "Pools", Pools)
    monkeypatch.setattr(process, "ask", lambda address, operation, tls: {})
    return seen


SERVED = {"experiment": "smoke/served", "overrides": {"soft_labels.at_most": 1}}


def test_trials_share_one_pool_and_pruned_ones_are_stopped(here, pool, monkeypatch):
    monkeypatch.setattr("kdlab.tuning.driver._WATCH_S", 0.0)
    addresses = []

    def epochs(child, order):
        """Says how each epoch ended until it is told to stop."""
        if isinstance(order, StopTrial):
            return TrialEnded(order.number, "stopped", "stopped by the user")
        addresses.append(order.pool)
        log = EventLog(Path(order.run) / "events.jsonl")
        for epoch in range(4):
            top1 = 20.0 + epoch
            log.emit(event("epoch_done", epoch=epoch, validation_top1=top1))
        log.close()
        return None

    inside = SweepFromInside(
        TRAINED,
        epochs,
        pruner={"name": "threshold", "lower": 101.0, "n_warmup_steps": 2},
        defaults=False,
        trials=6,
        **SERVED,
    )
    assert counted(inside.sweep) == [TrialState.PRUNED] * 6
    stopping = events(inside, "trial_stopping")
    assert [(e["epoch"], e["value"]) for e in stopping] == [(2, 21.0)] * 6
    shared = PoolAddress(address="tcp://127.0.0.1:9", teacher="t", tls=None)
    assert addresses == [shared] * 6
    assert (pool["started"], pool["closed"]) == (1, 1)
    assert pool["folder"].parent == inside.sweep.path / "pool"
    assert "No trial ended well" in inside.sweep.status.error


def test_a_pool_that_is_gone_ends_the_sweep_rather_than_all_trials(here, pool, monkeypatch):
    def gone(address, operation, tls):
        raise SchedulerUnreachable(address, 1.0, "nobody answers")

    monkeypatch.setattr(process, "ask", gone)

    def failing(child, order):
        return TrialEnded(order.number, "failed", "no soft labels came")

    inside = SweepFromInside(TRAINED, failing, trials=6, jobs=1, **SERVED)
    assert "The teacher pool of all trials at tcp://127.0.0.1:9 is gone" in (
        inside.sweep.status.error
    )
    assert "no soft labels came" in inside.sweep.status.error
    assert TrialState.FAIL not in counted(inside.sweep)


def test_a_sweep_that_another_process_carries_out_is_left_alone(here):
    inside = SweepFromInside(TRAINED, train, trials=1)
    before = inside.folder.raw_status()
    with (
        inside.folder.held(SystemExit("another process has it")),
        pytest.raises(SystemExit, match="small is going already in another process"),
    ):
        process.main(str(inside.folder.path), lambda: False)
    assert inside.folder.raw_status() == before


def test_what_is_known_of_this_machine_is_measured_once(here, monkeypatch):
    """A simulated sweep that goes on takes what its study has."""
    key, measured = "cases.0.student.samples_per_second", []

    def rates(sweep, real):
        measured.append(real.experiment)
        return {key: 123.0}

    monkeypatch.setattr(process, "rates", rates)
    monkeypatch.setattr(process, "real_run", lambda sweep, real, chosen: None)
    seen = []

    def simulated_here(child, order):
        seen.append(order.simulation["cases"][0]["student"]["samples_per_second"])
        return simulate(order)

    pool = {"teacher_pool": {"type": "cluster/emulated_pool", "teachers": 2, "t_t": 300}}
    real = {"experiment": "smoke/served", "overrides": pool, "calibrate": {key: "student"}}
    for trials in (2, 4):
        inside = SweepFromInside(SIMULATED, simulated_here, real=real, trials=trials)
    assert inside.sweep.state == "finished", inside.sweep.status.error
    assert measured == ["smoke/served"]
    assert seen == [123.0] * 4
    assert [e["set"] for e in events(inside, "calibrated")] == [{key: 123.0}]
