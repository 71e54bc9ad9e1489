"""The loop of a rank's process, in this process: its answer to each end of a generation."""

import queue
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from small_experiments import SMALL

import kdlab
from kdlab.changes.change import Pause, append
from kdlab.codec import to_builtins
from kdlab.errors import BadInput, ClusterError, RunStopped, SpecError
from kdlab.events.general import Note, Warned
from kdlab.events.log import read_all
from kdlab.experiment.rank_process import (
    RankProcess,
    agreed_backend,
    is_broken_group,
    is_machines_fault,
    serve,
)
from kdlab.supervision.rank_messages import (
    GenerationOrder,
    GroupBroken,
    MachineFailed,
    RankAnswer,
    RankDone,
    RankFailed,
    RankSaved,
    RankStopped,
)
from kdlab.train.aggregation.ranks import GenerationEnds


@dataclass(frozen=True)
class Result:
    top1: float


class Ended(BaseException):
    """Raised where the process would end."""


class ScriptedRank(RankProcess[GenerationOrder]):
    """Each generation ends as `ends` says: with a result, or by raising."""

    takes = GenerationOrder

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.ends, self.took = [], []

    def generation(self, order):
        self.took.append(order)
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end


@pytest.fixture
def rank(run_of):
    """A rank of the only member of a run."""
    return make_rank(run_of)


def make_rank(run_of, *overrides, **options):
    spec = kdlab.load("smoke/none", SMALL, *overrides).spec
    return ScriptedRank(run_of(spec), "none/seed0", lambda *about: None, **options)


def answers(rank, *ends):
    """Return its messages after `ready`, for an order that ends each of these ways."""
    orders, messages = queue.SimpleQueue(), []
    rank.ends = list(ends)
    for number in range(len(ends)):
        order = GenerationOrder(
            generation=number, world=1, meet_at="file:///there", secret="s"
        )
        orders.put(to_builtins(order))
    orders.put(None)

    def end(code):
        raise Ended(code)

    serve(rank, orders, lambda **message: messages.append(message), end)
    assert messages[0] == {"ready": True}
    return [RankAnswer.from_builtins(message) for message in messages[1:]]


# How a generation ends


def test_it_is_ready_and_carries_out_one_order_after_the_other(rank):
    assert answers(rank, Result(91.0), None) == [RankDone({"top1": 91.0}), RankDone(None)]
    assert [order.generation for order in rank.took] == [0, 1]
    assert rank.took[0] == GenerationOrder(
        generation=0, world=1, meet_at="file:///there", secret="s"
    )


def test_after_a_generation_that_others_ended_it_waits_for_the_next(rank):
    replies = answers(rank, GenerationEnds(), Result(1.0))
    assert replies == [RankSaved(leaving=False), RankDone({"top1": 1.0})]


def test_one_that_was_asked_to_leave_saves_and_takes_no_more_orders(rank):
    rank.leaving = True
    assert answers(rank, GenerationEnds(), Result(1.0)) == [RankSaved(leaving=True)]
    assert len(rank.took) == 1


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (RunStopped("saved"), RankStopped("saved")),
        (BadInput("no such file"), RankFailed("no such file", 2)),
        (ClusterError("the pool is gone"), RankFailed("the pool is gone", 1)),
        (ValueError("a shape"), RankFailed("ValueError: a shape", 1)),
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            RankFailed("OutOfMemoryError: CUDA out of memory", 1),
        ),
        (
            RuntimeError("[gloo/transport] Connection closed by peer"),
            GroupBroken("RuntimeError: [gloo/transport] Connection closed by peer"),
        ),
        (ConnectionResetError("reset"), GroupBroken("ConnectionResetError: reset")),
    ],
)
def test_what_went_wrong_is_said_so_that_the_group_knows_what_to_do(rank, error, answer):
    assert answers(rank, error, Result(1.0)) == [answer, RankDone({"top1": 1.0})]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("CUDA error: unknown")]
)
def test_where_the_machine_fails_it_the_process_ends_with_its_last_word(rank, error):
    orders, messages = queue.SimpleQueue(), []
    orders.put(to_builtins(GenerationOrder(generation=0, world=1, meet_at="", secret="s")))
    rank.ends = [error]

    def end(code):
        raise Ended(code)

    with pytest.raises(Ended, match="70"):
        serve(rank, orders, lambda **message: messages.append(message), end)
    last = RankAnswer.from_builtins(messages[-1])
    assert isinstance(last, MachineFailed)
    assert str(error) in last.why


def test_long_words_of_libraries_are_cut(rank):
    (broken,) = answers(rank, RuntimeError("Gloo " + 5000 * "x"))
    assert len(broken.why) == 300


@pytest.mark.parametrize(
    ("error", "broken", "machine"),
    [
        (dist.DistNetworkError("timeout"), True, False),
        (RuntimeError("NCCL communicator was aborted"), True, False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False, True),
        (FileNotFoundError("gone"), False, True),
        (KeyError("gloo"), False, False),
    ],
)
def test_whose_fault_it_is(error, broken, machine):
    assert (is_broken_group(error), is_machines_fault(error)) == (broken, machine)


# What it is made of


def test_it_has_the_runs_spec_member_and_log(rank):
    assert rank.member.name == "none/seed0"
    assert rank.folder == rank.run.member("none/seed0")
    assert rank.setup.spec == rank.spec
    assert rank.hash == rank.setup.spec_hash
    rank.warm_up()
    assert len(rank.setup.data.train) > 0


def test_rank_0_tells_all_and_the_others_what_is_news_from_any(rank):
    rank.report(0)(Note(message="a"))
    rank.report(1)(Note(message="b"))
    rank.report(2)(Warned(message="c"))
    logged = [(e.message, e.member, e.rank) for e in read_all(rank.run.events)]
    assert logged == [("a", "none/seed0", None), ("c", "none/seed0", 2)]


def test_it_stops_when_it_was_told_to_or_the_user_asked(run_of):
    asked = []
    rank = make_rank(run_of, stop=lambda: bool(asked))
    assert not rank.setup.stop()
    rank.stopping = True
    assert rank.setup.stop()
    rank.stopping = False
    asked.append(1)
    assert rank.setup.stop()


def test_orders_for_its_member_steer_it(rank):
    append(rank.run.path, Pause(time=rank.run.since + 1, member="none/seed0"))
    changes = rank.changes
    changes.poll(now=True)
    assert changes.paused


def test_another_spec_than_it_knows_is_refused(run_of):
    rank = make_rank(run_of)
    rank.run.path.joinpath("spec.yaml").write_text("student: {type: models/nobody}\n")
    with pytest.raises(SpecError, match="models/nobody"):
        ScriptedRank(rank.run, "none/seed0", lambda *about: None)


# Meeting


def test_it_meets_the_others_and_leaves_the_group_whatever_happens(rank, tmp_path):
    cpu = rank.device(0)
    assert cpu == torch.device("cpu")

    def order(number):
        there = f"file://{tmp_path / f'generation-{number}'}"
        return GenerationOrder(generation=number, world=1, meet_at=there, secret="s")

    with rank.process_group(order(1), cpu):
        assert dist.get_world_size() == 1
        assert dist.get_backend() == "gloo"
        rows = torch.ones(2)
        dist.all_reduce(rows)
        assert rows.tolist() == [1.0, 1.0]
    with pytest.raises(ZeroDivisionError), rank.process_group(order(2), cpu):
        raise ZeroDivisionError
    assert not dist.is_initialized()


def test_ranks_that_can_speak_different_things_speak_gloo():
    """Each rank reads the backends of the others before it decides."""
    for first, second, agreed in (
        ("nccl", "nccl", "nccl"),
        ("nccl", "gloo", "gloo"),
        ("gloo", "nccl", "gloo"),
        ("gloo", "gloo", "gloo"),
    ):
        store = dist.HashStore()
        store.set("backend of 1", second)
        assert agreed_backend(store, first, 0, 2) == agreed


def test_nccl_is_for_ranks_that_have_a_gpu_each(rank, monkeypatch):
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert rank.backend(gpu, on_this_machine=2) == "nccl"
    assert rank.backend(gpu, on_this_machine=3) == "gloo"  # two would share one
    assert rank.backend(cpu, on_this_machine=1) == "gloo"
