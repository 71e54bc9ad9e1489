"""Local models whose processes are scripted: orders, silence and death."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kdlab.codec import from_builtins, to_builtins
from kdlab.errors import KdlabError, RunStopped
from kdlab.methods.ensemble import processes as module
from kdlab.methods.ensemble.exchange import ModelFile
from kdlab.methods.ensemble.local_job import RoundWork
from kdlab.methods.ensemble.model_workers import RoundOrder, RoundReport
from kdlab.methods.ensemble.processes import Processes
from kdlab.papers.ec_dnn.round_schedule import Round
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.rank_messages import (
    RankDone,
    RankFailed,
    RankOrder,
    RankStopped,
)
from kdlab.supervision.supervisor import ChildLost, ChildReady
from kdlab.testing.scripted import FakeClock, ScriptedChild


@pytest.fixture
def started(monkeypatch):
    children = []

    def start(training, module, name, pulse):
        children.append(ScriptedChild(pid=len(children)))
        return children[-1]

    monkeypatch.setattr(module, "start_rank", start)
    monkeypatch.setattr(module, "_TICK_S", 0.0)
    return children


@pytest.fixture
def events():
    return []


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def models(started, events, clock, tmp_path):
    """Two local models, the first of them up."""
    training = SimpleNamespace(
        folder=tmp_path,
        run=SimpleNamespace(path=tmp_path),
        member=SimpleNamespace(name="ec"),
        hosts=None,
        pool=None,
        emit=events.append,
    )
    processes = Processes(training, hang_s=10.0)
    processes.supervisor._clock = clock
    for worker in range(2):
        processes.start(worker)
    started[0].say(ready=True)
    assert list(processes.events()) == [ChildReady(0)]
    return processes


def test_each_start_is_told_with_its_process(models, events):
    assert [(e.KIND, e.worker, e.pid) for e in events] == [
        ("worker_started", 0, 0),
        ("worker_started", 1, 1),
    ]


def test_orders_have_the_pool_of_the_soft_labels(models, started):
    """Workers open their source of soft labels themselves."""
    models.pool = PoolAddress("tcp://127.0.0.1:1", "teacher-1", {"ca": "ca.pem"})
    order = RoundOrder(what="train", worker=0, round=Round(0, 4), models=())
    models.send(order)
    assert 0 in models.supervisor.busy
    received = RankOrder.from_builtins(started[0].orders[-1])
    assert from_builtins(RoundOrder, received.order) == replace(order, labels=models.pool)


def test_a_report_is_an_event_and_its_worker_rests(models, started):
    work = RoundWork(
        round=0,
        model=ModelFile(0, "/m", "ab", 9),
        loss=0.1,
        steps=4,
        samples=80,
        wall_s=1.0,
    )
    report = RoundReport(0, "train", work)
    models.send(RoundOrder(what="train", worker=0, round=Round(0, 4), models=()))
    started[0].say(**to_builtins(RankDone(to_builtins(report))))
    assert list(models.events()) == [report]
    assert 0 not in models.supervisor.busy


def test_chaos_can_hit_all_that_were_started(models):
    assert [(t.name, t.pid) for t in models.targets()] == [("worker-0", 0), ("worker-1", 1)]


def test_before_its_first_sign_it_may_take_long(models, events, clock, started):
    clock.advance(100)
    list(models.events())
    assert started[1].alive()
    clock.advance(21)  # two minutes
    list(models.events())
    assert not started[1].alive()
    assert events[-1].KIND == "worker_hangs"
    assert events[-1].silent_s == pytest.approx(121.0)
    (lost,) = models.events()
    assert isinstance(lost, ChildLost)


def test_who_trains_must_give_signs_of_life(models, events, clock, started):
    started[1].beat(1, 3, clock.now)
    clock.advance(9)
    started[1].beat(1, 4, clock.now)
    clock.advance(9)
    assert list(models.events()) == []
    clock.advance(2)
    list(models.events())
    assert not started[1].alive()
    assert started[0].alive()  # it has nothing to do


def test_who_was_to_be_killed_and_goes_on_is_waited_for(
    models, events, clock, started, monkeypatch
):
    """The order to kill it may not arrive: its machine does not answer."""
    monkeypatch.setattr(ScriptedChild, "kill", lambda self: None)
    for _ in range(2):
        clock.advance(121)
        assert list(models.events()) == []
    assert [e.KIND for e in events[2:]] == ["worker_hangs", "worker_hangs"]
    started[1].beat(1, 3, clock.now)
    clock.advance(9)
    assert list(models.events()) == []
    assert len(events) == 4


def test_what_a_worker_says_of_the_end_is_raised(models, started):
    started[0].say(**to_builtins(RankStopped("stopped by the user after step 5")))
    with pytest.raises(RunStopped, match="after step 5"):
        list(models.events())
    started[1].say(**to_builtins(RankFailed("the loss is nan", 4)))
    with pytest.raises(KdlabError, match="Worker 1: the loss is nan") as raised:
        list(models.events())
    assert raised.value.exit_code == 4


def test_in_the_end_busy_ones_save_first(models, started):
    started[1].die()  # it is busy, and will not answer
    models.close()
    assert started[0].orders == [{"end": True}]  # it had nothing to save
    assert not any(child.alive() for child in started)
