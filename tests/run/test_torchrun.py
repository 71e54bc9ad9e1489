"""Ranks that torchrun starts: what rank 0 tells the others, and what each does with it.

Both ranks live in this process; what a rank trains is scripted.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import kdlab
from kdlab.errors import BadInput, KdlabError, RunStopped
from kdlab.events.ranks import GenerationBegun
from kdlab.run import torchrun
from kdlab.run.handle.run import prepare_for_torchrun
from kdlab.run.torchrun import Launched, LaunchedOrder, main
from kdlab.soft_labels.source import PoolAddress
from kdlab.train import checkpoint


@pytest.fixture
def run(elsewhere):
    experiment = kdlab.load("smoke/none", "aggregation.type=train/aggregation/all_reduce")
    return prepare_for_torchrun(experiment).folder


class Store:
    """torchrun's, as `torch.distributed` gives it: one for all ranks of this machine."""

    def __init__(self):
        self.kept, self.made = {}, []

    def __call__(self, host, port, is_master):
        self.made.append((host, port, is_master))
        return self

    def set(self, key, value):
        self.kept[key] = value.encode()

    def get(self, key):
        return self.kept[key]


@pytest.fixture
def store(monkeypatch):
    one = Store()
    monkeypatch.setattr(torchrun.dist, "TCPStore", one)
    return one


@pytest.fixture
def rank(run, store, monkeypatch):
    """A rank of torchrun's; rank 0 comes first."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)

    def of(number, attempt=1, world=2):
        facts = {
            "RANK": number, "WORLD_SIZE": world, "LOCAL_RANK": number,
            "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 4000,
            "TORCHELASTIC_RESTART_COUNT": attempt - 1, "TORCHELASTIC_RUN_ID": "mine",
        }  # fmt: skip
        for name, value in facts.items():
            monkeypatch.setenv(name, str(value))
        return Launched(run, lambda: False)

    return of


@pytest.fixture
def trained(monkeypatch):
    """Orders that ranks carried out, in place of training."""
    orders = []

    class Rank:
        def __init__(self, run, member, beat, stop):
            self.member = member

        def generation(self, order):
            orders.append((self.member, order))
            return SimpleNamespace(member=self.member) if order.rank == 0 else None

    monkeypatch.setattr(torchrun, "Rank", Rank)
    monkeypatch.setattr(torchrun, "plain", vars_or_plain)
    return orders


def vars_or_plain(result):
    from kdlab.messages import plain

    return {"of": result.member} if isinstance(result, SimpleNamespace) else plain(result)


def training(run, name="none/seed0", pool=None):
    events = []
    return SimpleNamespace(
        member=SimpleNamespace(name=name),
        folder=run.member(name),
        pool=pool,
        emit=events.append,
        events=events,
    )


def test_all_ranks_of_a_start_meet_in_one_folder_and_those_of_the_next_in_another(
    rank, store
):
    first, second = rank(0), rank(1)
    assert first.folder == second.folder
    assert first.folder.is_dir()
    assert (first.attempt, first.world, second.rank) == (1, 2, 1)
    assert len(first.folder.name) == 16  # a random word
    assert store.made == [("127.0.0.1", 4000, True), ("127.0.0.1", 4000, False)]
    assert rank(0, attempt=2).folder != first.folder
    assert rank(1, attempt=2).folder != first.folder


def test_where_torchrun_has_a_store_rank_0_makes_none(rank, store, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    rank(0)
    assert store.made == [("127.0.0.1", 4000, False)]


def test_rank_0_tells_all_which_member_comes_next(rank, run, trained):
    first, other = rank(0), rank(1)
    one = training(run)
    assert first.for_member(one) is first
    (event,) = one.events
    assert event == GenerationBegun(number=1, ranks=2, launcher="torchrun")
    assert first.targets() == []
    assert first.run() == {"of": "none/seed0"}
    order = other.order()
    assert order == LaunchedOrder(member="none/seed0", fence=1, pool=None)
    other.train(order)
    (_, mine), (_, others) = trained
    assert (mine.rank, others.rank) == (0, 1)
    for told in (mine, others):
        assert (told.generation, told.world, told.local_world, told.fence) == (1, 2, 2, 1)
    assert mine.meet_at == others.meet_at  # both have seen one order
    assert mine.meet_at.startswith(f"file://{first.folder}")


def test_the_pool_that_teaches_is_told_by_its_address(rank, run):
    pool = PoolAddress(address="tls://10.0.0.1:8786", teacher="abc", tls={"ca": "ca.pem"})
    told = SimpleNamespace(address=pool.address, teacher=pool.teacher, tls=pool.tls)
    first, other = rank(0), rank(1)
    first.publish(first.for_member(training(run, pool=told)).next)
    assert other.order().pool == pool


def test_each_start_raises_the_fence_so_that_no_earlier_rank_saves(rank, run):
    one = training(run)
    first = rank(0)
    for expected in (1, 2):
        assert first.for_member(one).next.fence == expected
    with pytest.raises(KdlabError, match=r"trains in .* given up as lost"):
        checkpoint.save(one.folder / "checkpoints", 1, {}, None, fence=1)


def test_each_member_is_an_order_of_its_own(rank, run, trained):
    first, other = rank(0), rank(1)
    meetings = []
    for name in ("none/seed0", "none/seed1"):
        first.for_member(training(run, name)).run()
        order = other.order()
        assert order.member == name
        other.train(order)
        meetings.append({told.meet_at for _, told in trained[-2:]})
    assert [len(one) for one in meetings] == [1, 1]
    assert meetings[0] != meetings[1]


def test_the_end_is_known_within_a_moment_or_it_is_none(rank, monkeypatch):
    monkeypatch.setattr(torchrun, "_LAST_WORD_S", 0.0)
    first, other = rank(0), rank(1)
    assert not other.has_ended()  # rank 0 says nothing: it is dead
    first.publish(LaunchedOrder(member="none/seed1"))
    assert not other.has_ended()  # it goes on
    first.publish(LaunchedOrder())
    assert other.has_ended()


# What a rank's process comes to


@pytest.fixture
def process(rank, run, monkeypatch):
    """`main` of rank 1, beside a rank 0 that has said this; (exit code, members trained)."""

    def come(*orders, error=None):
        first = rank(0)
        for order in orders:
            first.publish(order)
        monkeypatch.setenv("RANK", "1")
        members = []

        def train(self, order):
            members.append(order.member)
            if error is not None:
                raise error

        monkeypatch.setattr(Launched, "train", train)
        monkeypatch.setattr(torchrun, "_LAST_WORD_S", 0.0)
        return main([run.run_id]), members

    return come


ONE, TWO, END = (LaunchedOrder(member=m) for m in ("none/seed0", "none/seed1", None))


def test_a_rank_trains_one_member_after_the_other_until_it_is_told_to_end(process):
    assert process(ONE, TWO, END) == (0, ["none/seed0", "none/seed1"])


def test_a_stop_is_no_failure_or_torchrun_would_start_all_again(process):
    assert process(ONE, error=RunStopped("x")) == (0, ["none/seed0"])


def test_a_group_that_broke_because_rank_0_has_ended_is_no_failure(process):
    gone = RuntimeError("gloo: connection closed by peer")
    assert process(ONE, END, error=gone) == (0, ["none/seed0"])


@pytest.mark.parametrize(
    ("orders", "why"),
    [((ONE,), "gloo: connection closed by peer"), ((ONE, TWO), "gloo: closed"),
     ((ONE, END), "shapes do not fit")],
)  # fmt: skip
def test_any_other_error_ends_the_rank(process, orders, why):
    with pytest.raises(RuntimeError, match=why):
        process(*orders, error=RuntimeError(why))


@pytest.fixture
def master(rank, run, monkeypatch):
    """`main` of rank 0 whose run comes to this; (exit code, last order, what passes)."""

    def come(code, attempt=1, restarts=1):
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", str(restarts))
        kept = []

        def execute(folder, make, passes):
            assert folder.status().pid is not None
            assert folder.status().alive()
            kept.append(passes)
            return code

        monkeypatch.setattr(torchrun, "execute", execute)
        rank(0, attempt)
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        found = main([run.run_id])
        orders = sorted(Path(run.path / "torchrun").glob("*/order-*.json"))
        return found, [json.loads(path.read_text()) for path in orders], kept[0]

    return come


@pytest.mark.parametrize("code", [0, 130])
def test_when_the_run_has_ended_or_was_stopped_the_others_are_let_go(master, code):
    found, (order,), _ = master(code)
    assert found == 0
    assert order["member"] is None


def test_a_run_that_failed_ends_by_its_code_and_nobody_is_told_that_it_is_over(master):
    assert master(1)[:2] == (1, [])


def test_a_broken_group_passes_while_torchrun_starts_all_again(master):
    broken = RuntimeError("gloo: closed by peer")
    *_, passes = master(1, attempt=1, restarts=1)
    assert passes(broken)
    assert not passes(ValueError("of the run's own"))


def test_a_broken_group_is_the_end_when_torchrun_starts_none_again(master):
    *_, passes = master(1, attempt=2, restarts=1)
    assert not passes(RuntimeError("gloo: closed by peer"))


@pytest.mark.parametrize("words", [[], ["a", "b"]])
def test_it_says_how_it_is_started(words, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(BadInput, match="kdlab run NAME --torchrun"):
        main(words)
    monkeypatch.delenv("RANK")
    with pytest.raises(BadInput, match="started by torchrun"):
        main(["a"])


def test_only_one_student_has_ranks_of_torchrun(elsewhere):
    for name in ("smoke/none", "smoke/ensemble"):
        with pytest.raises(BadInput, match="torchrun starts the ranks of one student"):
            prepare_for_torchrun(kdlab.load(name))
