"""Workers for trials; their processes are scripted."""

import pytest

from kdlab.codec import to_builtins
from kdlab.errors import ClusterError
from kdlab.testing.scripted import ScriptedChild
from kdlab.tuning.trial_workers import (
    StopTrial,
    TrialEnded,
    TrialOrder,
    TrialWorkerOrder,
    TrialWorkers,
)


@pytest.fixture
def started():
    """All children that were started, in their order."""
    return []


@pytest.fixture
def workers(started, tmp_path):
    def start(module, config, log, pulse):
        assert module == "kdlab.tuning.trial_worker"
        started.append(ScriptedChild(pid=len(started)))
        configs.append((log.name, config.gpu))
        return started[-1]

    configs = []
    workers = TrialWorkers(2, tmp_path, simulates=True, gpus=("3",), start=start)
    workers.configs = configs
    return workers


def test_who_is_ready_gets_a_trial_and_is_free_after_it(workers, started):
    assert workers.idle() == []
    started[1].say(ready=True)
    assert list(workers.events()) == []
    assert workers.idle() == [1]
    order, ended = TrialOrder(number=7, run="/runs/7"), TrialEnded(7, "finished", None, {})
    workers.send(1, order)
    assert workers.idle() == []
    assert list(map(TrialWorkerOrder.from_builtins, started[1].orders)) == [order]
    started[1].say(**to_builtins(ended))
    assert list(workers.events()) == [ended]
    assert workers.idle() == [1]


def test_only_the_worker_at_a_trial_is_told_to_stop_it(workers, started):
    for child in started:
        child.say(ready=True)
    list(workers.events())
    workers.send(0, TrialOrder(number=3))
    workers.send(1, TrialOrder(number=4))
    workers.stop(4)
    stop = to_builtins(StopTrial(4))
    assert stop not in started[0].orders
    assert started[1].orders[-1] == stop


def test_a_lost_worker_is_started_again_and_its_trial_is_named(workers, started):
    started[0].say(ready=True)
    list(workers.events())
    workers.send(0, TrialOrder(number=3))
    started[0].die()
    (lost,) = workers.events()
    assert (lost.order, lost.state) == (3, "lost")
    assert len(started) == 3
    assert workers.idle() == []  # the new one is not up yet


def test_a_result_that_was_said_before_the_death_counts(workers, started):
    started[0].say(ready=True)
    list(workers.events())
    workers.send(0, TrialOrder(number=3))
    started[0].say(**to_builtins(TrialEnded(3, "finished", None, {})))
    started[0].die()
    ended, lost = workers.events()
    assert ended.order == 3
    assert lost.order is None  # nothing is to be tried again


def test_an_order_that_may_not_have_arrived_ends_the_worker(workers, started):
    started[0].say(ready=True)
    list(workers.events())
    started[0].die()
    workers.send(0, TrialOrder(number=5))
    (lost,) = workers.events()
    assert lost.order == 5


def test_a_worker_that_never_comes_up_is_an_error(workers, started):
    for _ in range(2):
        started[-1 if len(started) > 2 else 0].die(1)
        (lost,) = workers.events()
        assert (lost.order, lost.state) == (None, "lost")
    started[-1].die(1)
    with pytest.raises(ClusterError, match=r"does not start.*before it was ready"):
        list(workers.events())
    assert len(started) == 4


def test_gpus_are_shared_out_in_turn_also_to_who_comes_again(workers, started):
    assert workers.configs == [("worker-0.log", "3"), ("worker-1.log", "3")]
    started[1].say(ready=True)
    started[1].die()
    list(workers.events())
    assert workers.configs[2:] == [("worker-1.log", "3")]


def test_all_are_told_that_it_is_over(workers, started):
    workers.close()
    assert [child.orders for child in started] == [[{"end": True}]] * 2
    assert [child.exit_code for child in started] == [0, 0]
