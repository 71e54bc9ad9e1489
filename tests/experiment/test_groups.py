"""How a run starts the ranks of a member, and what it tells a generation."""

from types import SimpleNamespace

import pytest
from small_experiments import ScriptedPool

from kdlab.cluster.hosted_ranks import HostedRank
from kdlab.codec import from_builtins
from kdlab.experiment import groups
from kdlab.experiment.groups import rank_group, start_rank
from kdlab.papers.edl_dist.generations import Generations, StartGeneration
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.rank_messages import (
    CarryOut,
    GenerationOrder,
    RankOrder,
    StopTraining,
)
from kdlab.testing.scripted import ScriptedChild
from kdlab.train import checkpoint

MODULE = "kdlab.methods.student.rank"


class ScriptedHosts:
    """Workers of a cluster that start scripted children and record each start."""

    def __init__(self, make_child=ScriptedChild):
        self.make_child, self.started, self.children = make_child, [], []

    def start(self, module, config, log, pulse):
        self.started.append((module, config, log, pulse))
        self.children.append(self.make_child(pid=200 + len(self.children)))
        return self.children[-1]

    def rendezvous(self, first):
        return f"tcp://{first.machine}:29500"


class ScriptedHosted(ScriptedChild, HostedRank):
    """A scripted child that has the type of a rank on a worker."""


@pytest.fixture
def training(tmp_path):
    """The training of one member, whose processes are started on `hosts`."""
    events = []
    return SimpleNamespace(
        folder=tmp_path / "members" / "served",
        run=SimpleNamespace(path=tmp_path),
        member=SimpleNamespace(name="served/seed0"),
        hosts=ScriptedHosts(),
        emit=events.append,
        events=events,
        setup=SimpleNamespace(stop=lambda: False),
    )


def group_of(training, pool=None, **more):
    machine = Generations(wanted=2, standby=0)
    return rank_group(machine, training, module=MODULE, pool=pool, hang_s=20.0, **more)


def test_a_rank_is_told_whose_it_is_and_has_a_log_of_its_own(training, tmp_path):
    child = start_rank(training, MODULE, "rank-process-3", tmp_path / "pulse")
    assert child is training.hosts.children[0]
    ((module, config, log, pulse),) = training.hosts.started
    assert (module, pulse) == (MODULE, tmp_path / "pulse")
    assert (config.run, config.member) == (str(tmp_path), "served/seed0")
    assert config.name == "rank-process-3"
    assert log == training.folder / "rank-process-3.log"


def test_without_workers_ranks_are_started_on_this_machine(training, tmp_path, monkeypatch):
    hosts = ScriptedHosts()
    training.hosts = None
    monkeypatch.setattr(groups, "start_local_rank", hosts.start)
    start_rank(training, MODULE, "rank-process-0", tmp_path / "pulse")
    assert [module for module, *_ in hosts.started] == [MODULE]


def test_a_generation_begins_at_the_newest_checkpoint_and_fences_the_older_ones(training):
    pool = ScriptedPool()
    group = group_of(training, pool)
    group.begin()
    for child in training.hosts.children:
        child.say(ready=True)
    group.poll(1.0)
    first, second = training.hosts.children
    orders = [RankOrder.from_builtins(child.orders[0]) for child in (first, second)]
    assert all(isinstance(order, CarryOut) for order in orders)
    generations = [from_builtins(GenerationOrder, order.order) for order in orders]
    assert [order.rank for order in generations] == [0, 1]
    assert generations[0].world == 2
    assert generations[0].from_step == 0
    assert generations[0].names == ("rank-process-0", "rank-process-1")
    meeting = training.folder / "group" / f"generation-{generations[0].generation}"
    assert generations[0].meet_at == f"file://{meeting}"
    assert generations[0].pool == PoolAddress.from_pool(pool)
    later = group.order(StartGeneration(2, ("rank-process-1",)))
    assert later.fence > generations[0].fence  # the first one can no longer write
    assert checkpoint.raise_fence(training.folder / "checkpoints") > later.fence
    assert later.world == 1


def test_nobody_teaches_where_there_is_no_pool(training):
    group = group_of(training)
    group.begin()
    assert group.order(StartGeneration(1, ("rank-process-0",))).pool is None


def test_ranks_on_workers_meet_at_the_first_of_them(training):
    training.hosts = ScriptedHosts(lambda pid: ScriptedHosted(pid=pid, machine="10.0.0.7"))
    group = group_of(training)
    group.begin()
    order = group.order(StartGeneration(1, ("rank-process-1", "rank-process-0")))
    assert order.meet_at == "tcp://10.0.0.7:29500"


def test_meetings_of_an_earlier_session_are_taken_away(training):
    old = training.folder / "group" / "generation-4"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"somebody met here")
    group_of(training)
    assert not old.exists()


def test_stop_scale_and_events_go_where_the_run_has_them(training):
    wanted, stop = [], []
    training.setup.stop = lambda: bool(stop)
    group = group_of(training, wanted=lambda: wanted.pop() if wanted else None)
    group.begin()
    for child in training.hosts.children:
        child.say(ready=True)
    group.poll(1.0)
    assert [e.KIND for e in training.events] == ["generation_started"]
    wanted.append(3)
    group.poll(2.0)
    assert len(training.hosts.children) == 3
    stop.append(1)
    group.poll(3.0)
    orders = [RankOrder.from_builtins(o) for o in training.hosts.children[0].orders]
    assert StopTraining() in orders
