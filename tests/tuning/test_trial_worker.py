"""A process that carries out trials: orders in, ends out; failures are reported."""

import errno
from dataclasses import dataclass

import pytest
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.codec import MessageError, from_builtins, to_builtins
from kdlab.errors import BadInput, RunStopped
from kdlab.events.runs import RunDone
from kdlab.experiment.folder import RunFolder
from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import create_folder
from kdlab.run.process.execution import Job
from kdlab.soft_labels.source import PoolAddress
from kdlab.tuning.simulated import simulate
from kdlab.tuning.trial_worker import OrderQueue, trained
from kdlab.tuning.trial_workers import StopTrial, TrialEnded, TrialOrder


def carried_out(work, *messages):
    """Return the ends that a worker reports of these orders."""
    orders, reports = OrderQueue(), []
    for message in messages:
        orders.receive(message)
    orders.receive({"end": True})
    orders.carry_out(work, lambda **facts: reports.append(facts))
    assert reports.pop(0) == {"ready": True}
    return [from_builtins(TrialEnded, facts) for facts in reports]


def order(number, **more):
    return to_builtins(TrialOrder(number=number, **more))


def test_orders_are_carried_out_in_turn_until_the_end():
    numbers = []

    def work(order):
        numbers.append(order.number)
        return TrialEnded(order.number, "finished", result={"top1": order.number})

    ended = carried_out(work, order(4), order(7))
    assert numbers == [4, 7]
    assert [e.result for e in ended] == [{"top1": 4}, {"top1": 7}]


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (BadInput("no such card"), "failed", "no such card"),
        (ZeroDivisionError("by zero"), "failed", "ZeroDivisionError: by zero"),
        (OSError(errno.ENOSPC, "full"), "no_room", "OSError: [Errno 28] full"),
        (
            OSError(errno.EACCES, "not yours"),
            "failed",
            "PermissionError: [Errno 13] not yours",
        ),
    ],
)
def test_a_trial_that_goes_wrong_is_told_of_and_the_next_one_is_done(error, state, words):
    def work(order):
        if order.number == 0:
            raise error
        return TrialEnded(order.number, "finished", result={})

    first, second = carried_out(work, order(0), order(1))
    assert (first.state, first.error, first.result) == (state, words, None)
    assert second.state == "finished"


def test_a_stop_is_heard_beside_the_orders():
    orders = OrderQueue()
    orders.receive(order(3))
    orders.receive(to_builtins(StopTrial(3)))
    assert orders.stopped == {3}
    with pytest.raises(MessageError, match="none of TrialOrder, StopTrial"):
        orders.receive({"kind": "Pause"})


def test_a_simulation_comes_to_its_figures():
    spec = searched(SIMULATED).space.composed({"cases.0.teachers": 8}).data
    ended = simulate(TrialOrder(number=5, simulation=spec))
    assert (ended.order, ended.state) == (5, "finished")
    assert ended.result["teachers"] == 8
    assert ended.result["samples_lost"] == 0


def test_a_simulation_without_a_spec_is_told_of():
    (ended,) = carried_out(simulate, order(5))
    assert ended.state == "failed"
    assert ended.error


# Training


@dataclass(frozen=True)
class LoadedCheckpoint:
    top1: float


class Trial(Job):
    """A job that ends with what `does` returns or raises."""

    done, late = RunDone, "MLflow is slow"

    def __init__(self, run, stop, pool, does):
        super().__init__(run, stop)
        self.does, self.pool = does, pool

    def main(self):
        return self.does(self)

    def resume_hint(self):
        return "go on"


def train(run, does, stopped=(), pool=None):
    def process(folder, stop, pool):
        return Trial(folder, stop, pool, does)

    return trained(TrialOrder(number=2, run=str(run.path), pool=pool), stopped, process)


@pytest.fixture
def run(tmp_path):
    tree = searched(TRAINED).space.composed({})
    return create_folder(Experiment(tree), "starting", tmp_path / "trial")[0]


def test_a_trial_is_told_as_its_folder_has_it(run):
    ended = train(run, lambda trial: LoadedCheckpoint(top1=81.5))
    assert ended == TrialEnded(2, "finished", None, {"top1": 81.5})
    assert run.raw_status().state == "finished"


def test_a_trial_knows_its_pool_and_whether_it_is_to_stop(run):
    pool, seen = PoolAddress(address="tcp://here:1", teacher="t", tls=None), []

    def does(trial):
        seen.append((trial.pool, trial.stop()))
        raise RunStopped("stopped by the user")

    ended = train(run, does, pool=pool)
    assert seen == [(pool, False)]
    assert (ended.state, ended.error) == ("stopped", "stopped by the user")
    ended = train(RunFolder(run.path), does, stopped={2})  # before it begins
    assert len(seen) == 1
    assert ended.state == "stopped"
    again = RunFolder(run.path)
    assert train(
        again, lambda trial: LoadedCheckpoint(top1=float(trial.stop())), {3}
    ).result == {"top1": 0.0}


def test_an_error_is_the_trials_and_in_its_status(run):
    def does(trial):
        raise BadInput("the teacher has other classes")

    ended = train(run, does)
    assert (ended.state, ended.error) == ("failed", "the teacher has other classes")
    assert run.raw_status().exit_code == BadInput.exit_code


def test_a_full_disk_is_no_end_of_the_trial(run):
    """The error ends the sweep; the trial will begin again in its folder."""

    def does(trial):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        train(run, does)
    assert run.raw_status().state == "starting"
    assert run.raw_status().error is None
