"""Faults of a sweep within one process: kills, full disks, stops, lost pools."""

import errno
import itertools
import random
from pathlib import Path

import pytest
from optuna.trial import TrialState
from scripted_sweeps import (
    Hosts,
    SweepFromInside,
    after,
    counted,
    events,
    finished_values,
    simulated,
    train,
)
from small_sweeps import SIMULATED, TRAINED
from tests_support import event

from kdlab.errors import (
    ClusterError,
    RunFailed,
    RunStopped,
    SchedulerUnreachable,
)
from kdlab.events.log import EventLog
from kdlab.soft_labels.source import PoolAddress
from kdlab.testing.scripted import ScriptedChild
from kdlab.tuning import attach_sweep, process
from kdlab.tuning.simulated import simulate
from kdlab.tuning.trial_workers import StopTrial, TrialEnded


class KilledError(BaseException):
    """A kill, which the driver cannot handle as an error."""


def killed_after(looks):
    count = itertools.count()

    def stop():
        if next(count) >= looks:
            raise KilledError
        return False

    return stop


MANY = {"trials": 16, "jobs": 2}


@pytest.mark.long
def test_a_driver_killed_at_any_moment_loses_nothing(no_pictures):
    """Ended trials keep their values, running ones are tried again, none is left out."""
    chance, known = random.Random(5), {}
    for _ in range(4):
        answers = itertools.count()

        def slowly(child, order, at=answers):
            """Some trials are under way when the driver dies."""
            return simulate(order) if next(at) % 3 else None

        stop = killed_after(chance.randrange(1, 5))
        with pytest.raises(KilledError):
            SweepFromInside(SIMULATED, slowly, stop=stop, **MANY)
        now = finished_values(attach_sweep("small"))
        assert {n: now[n] for n in known} == known
        known = now
    inside = SweepFromInside(SIMULATED, simulated, **MANY)
    assert known
    assert inside.sweep.result["trials"]["complete"] == 16
    assert inside.sweep.result["trials"]["tried_again"] >= 1
    assert {n: finished_values(inside.sweep)[n] for n in known} == known
    assert counted(inside.sweep) == [TrialState.COMPLETE] * 16


def test_a_full_disk_loses_no_trial(no_pictures):
    """The journal cannot grow; with room again the same command goes on."""
    count = itertools.count()

    def full():
        if next(count) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return False

    inside = SweepFromInside(SIMULATED, simulated, stop=full, **MANY)
    assert (inside.code, inside.sweep.state) == (1, "failed")
    assert "The disk did not take" in inside.sweep.status.error
    assert "running ones will be retried" in inside.sweep.status.error
    with pytest.raises(RunFailed, match=r"kdlab sweep .*--study small"):
        _ = inside.sweep.result
    known = finished_values(inside.sweep)
    assert len(known) > 5
    again = SweepFromInside(SIMULATED, simulated, **MANY).sweep
    assert again.result["trials"]["complete"] == 16
    assert {n: finished_values(again)[n] for n in known} == known


def test_a_full_disk_of_a_worker_ends_the_sweep_and_no_trial(no_pictures):
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


def test_a_killed_worker_costs_its_trial_alone(no_pictures):
    deaths = [0, 1, 2]

    def mortal(child, order):
        if deaths and deaths.pop(0) == 0:
            child.die()
            return None
        return train(child, order)

    inside = SweepFromInside(TRAINED, mortal, trials=6, jobs=2)
    assert [e.order for e in events(inside, "local_model_lost")] == [0]
    assert counted(inside.sweep) == [TrialState.COMPLETE] * 6
    assert inside.sweep.result["trials"]["tried_again"] == 1
    assert len(inside.hosts.children) == 3  # another one took its place


def test_workers_that_never_come_up_end_the_sweep(no_pictures):
    class Stillborn(Hosts):
        def start(self, module, config, log, pulse):
            self.children.append(ScriptedChild())
            self.children[-1].die(1)
            return self.children[-1]

    inside = SweepFromInside(TRAINED, train, hosts=Stillborn(train), trials=1, jobs=1)
    assert inside.code == ClusterError.exit_code
    assert "A worker for trials does not start" in inside.sweep.status.error
    assert len(inside.hosts.children) == 3


def test_workers_of_a_cluster_are_started_by_its_hosts(no_pictures, monkeypatch):
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
    monkeypatch.setenv("KDLAB_ADDRESSES", "tcp://127.0.0.1:9")
    cluster = {"address": "tcp://127.0.0.1:9", "insecure": True}
    inside = SweepFromInside(TRAINED, train, trials=6, jobs=2, workers=cluster)
    ((address, tls, hosts),) = hosted
    assert (address, tls) == ("tcp://127.0.0.1:9", None)
    assert inside.hosts.children == []
    assert hosts.closed
    assert inside.sweep.state == "finished", inside.sweep.status.error
    assert counted(inside.sweep) == [TrialState.COMPLETE] * 6
    assert [e.order for e in events(inside, "local_model_lost")] == [1]


def test_a_stop_ends_gracefully_and_the_same_command_goes_on(no_pictures):
    def until_told(child, order):
        """A trial runs until it is told to stop."""
        if isinstance(order, StopTrial):
            return TrialEnded(order.number, "stopped", "stopped by the user")
        return None

    changes = {"trials": 4, "jobs": 2}
    inside = SweepFromInside(TRAINED, until_told, stop=after(3), **changes)
    sweep = inside.sweep
    assert (inside.code, sweep.state) == (RunStopped.exit_code, "stopped")
    with pytest.raises(RunStopped, match=r"Continue with"):
        _ = sweep.result
    assert all(not child.alive() for child in inside.hosts.children)
    waiting = [t for t in sweep.study.trials if t.state == TrialState.WAITING]
    assert len(waiting) == 2
    again = SweepFromInside(TRAINED, train, **changes).sweep
    assert again.state == "finished", again.status.error
    assert counted(again) == [TrialState.COMPLETE] * 4
    assert attach_sweep("small").result == again.result


def test_failed_trials_are_kept_with_their_error(no_pictures):
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
    """Stands in for the pool that all trials share, and counts its starts and ends."""
    seen = {"started": 0, "closed": 0}

    class Pools:
        def __init__(self, run, setup, emit, stop, *, others):
            assert others  # the pool keeps its answers: trials ask for the same
            seen["folder"] = run.path

        def teacher_pool(self):
            seen["started"] += 1
            return PoolAddress(address="tcp://127.0.0.1:9", teacher="t", tls=None)

        def close(self):
            seen["closed"] += 1

    monkeypatch.setattr(process, "Pools", Pools)
    monkeypatch.setattr(process, "ask", lambda address, operation, tls: {})
    return seen


SERVED = {"experiment": "smoke/served", "overrides": {"soft_labels.at_most": 1}}


def test_trials_share_one_pool_and_pruned_ones_are_stopped(no_pictures, pool, monkeypatch):
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
    assert [(e.epoch, e.value) for e in stopping] == [(2, 21.0)] * 6
    shared = PoolAddress(address="tcp://127.0.0.1:9", teacher="t", tls=None)
    assert addresses == [shared] * 6
    assert (pool["started"], pool["closed"]) == (1, 1)
    assert pool["folder"].parent == inside.sweep.path / "pool"
    assert "No trial completed" in inside.sweep.status.error


def test_a_pool_that_is_gone_ends_the_sweep_rather_than_all_trials(
    no_pictures, pool, monkeypatch
):
    def gone(address, operation, tls):
        raise SchedulerUnreachable(address, 1.0, "nobody answers")

    monkeypatch.setattr(process, "ask", gone)

    def failing(child, order):
        return TrialEnded(order.number, "failed", "no soft labels came")

    inside = SweepFromInside(TRAINED, failing, trials=6, jobs=1, **SERVED)
    assert "The teacher pool of all trials at tcp://127.0.0.1:9 does not answer" in (
        inside.sweep.status.error
    )
    assert "no soft labels came" in inside.sweep.status.error
    assert TrialState.FAIL not in counted(inside.sweep)
