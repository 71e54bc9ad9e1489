"""A group of ranks whose processes are a script: what it tells them, and what it reports."""

import pytest

from kdlab.cluster.group import StudentGroup
from kdlab.codec import from_builtins, to_builtins
from kdlab.errors import RunStopped
from kdlab.papers.edl_dist.generations import Generations
from kdlab.supervision.rank_messages import (
    GenerationOrder,
    GroupBroken,
    MachineFailed,
    RankDone,
    RankFailed,
    RankOrder,
    RankStopped,
    StopTraining,
)
from kdlab.testing.scripted import ScriptedChild


class Case:
    """A group of two ranks and a standby at second 100, and what came of it."""

    def __init__(self, folder, **machine):
        self.now, self.asked_to_stop = 100.0, False
        self.children, self.events = {}, []
        self.group = StudentGroup(
            Generations(wanted=2, **machine),
            start=self._start,
            order=lambda generation: GenerationOrder(
                generation=generation.generation,
                world=2,
                meet_at="file:///there",
                secret="s",
            ),
            folder=folder,
            hang_s=20.0,
            report=self.events.append,
            stop=lambda: self.asked_to_stop,
        )
        self.group.begin()

    def _start(self, name, path):
        child = self.children[name] = ScriptedChild(pid=1000 + len(self.children))
        return child

    def after(self, seconds=0.1):
        """Look again; the kinds of events that this made."""
        before = len(self.events)
        self.now += seconds
        self.group.poll(self.now)
        return [event.KIND for event in self.events[before:]]

    def all_ready(self):
        for child in self.children.values():
            child.say(ready=True)
        return self.after()

    def train(self, step):
        """Ranks of the generation under way have done so many steps."""
        for name in self.group.machine.ranks:
            self.children[name].beat(self.group.machine.generation, step, self.now)

    def says(self, rank, answer):
        """Have this process announce an answer, which is heard at the next look."""
        self.children[f"rank-process-{rank}"].say(**to_builtins(answer))

    def orders(self, name):
        """Return the orders that this process got so far."""
        return [RankOrder.from_builtins(order) for order in self.children[name].orders]


@pytest.fixture
def case(tmp_path):
    case = Case(tmp_path)
    assert case.all_ready() == ["generation_started"]
    return case


def test_ranks_begin_together_and_each_knows_its_place(case):
    (begun,) = case.events
    assert begun.ranks == {"rank-process-0": 1000, "rank-process-1": 1001}
    orders = [from_builtins(GenerationOrder, case.orders(n)[-1].order) for n in begun.ranks]
    assert [o.rank for o in orders] == [0, 1]
    assert all(o.names == tuple(begun.ranks) for o in orders)
    assert [(o.local_rank, o.local_world) for o in orders] == [(0, 2), (1, 2)]
    assert not case.children["rank-process-2"].orders  # it stands by


def test_a_lost_rank_is_replaced_by_the_standby(case):
    case.train(5)
    case.after()
    case.children["rank-process-1"].die()
    case.says(0, GroupBroken("its peer is gone"))
    kinds = case.after()
    assert kinds.count("rank_lost") == 1
    assert "rank_gave_up" in kinds
    assert "generation_started" in kinds
    assert case.group.machine.ranks == ("rank-process-0", "rank-process-2")
    assert len(case.children) == 4  # a standby more
    case.train(6)
    # Not before all have done a step of it.
    assert "group_recovered" not in [event.KIND for event in case.events]
    assert "group_recovered" in case.after()


def test_the_master_says_why_its_machine_failed_it(case):
    case.says(0, MachineFailed("CUDA error: out of memory"))
    case.children["rank-process-0"].die(1)
    case.after()
    (lost,) = [event for event in case.events if event.KIND == "rank_lost"]
    assert (lost.rank, lost.was_rank) == ("rank-process-0", True)
    assert "out of memory" in lost.why


def test_of_silent_ranks_the_one_furthest_behind_is_ended(case):
    case.train(5)
    case.children["rank-process-0"].beat(1, 9, case.now)
    case.after()
    assert case.after(19) == []
    assert case.after(2) == ["rank_hangs"]
    assert not case.children["rank-process-1"].alive()
    assert case.children["rank-process-0"].alive()
    assert "rank_lost" in case.after()


def test_a_stopped_process_is_the_one_that_hangs(case):
    case.train(5)
    case.children["rank-process-1"].beat(1, 9, case.now)
    case.children["rank-process-1"].stopped = True
    case.after()
    assert case.after(21) == ["rank_hangs"]
    assert not case.children["rank-process-1"].alive()


def test_a_first_step_may_take_long(case):
    assert case.after(50) == []  # it loads data


def test_stop_is_told_once_and_waits_for_the_master(case):
    case.train(5)
    case.asked_to_stop = True
    case.after()
    assert all(case.orders(name)[-1] == StopTraining() for name in case.children)
    case.after()
    assert all(case.orders(name).count(StopTraining()) == 1 for name in case.children)
    case.says(1, RankStopped("stopped after step 6"))
    case.after()  # the master saves still
    case.says(0, RankStopped("stopped after step 6"))
    with pytest.raises(RunStopped, match="after step 6"):
        case.after()


def test_a_stop_that_ranks_do_not_hear_ends_them(case):
    """It waited for as long as a rank may be silent, a minute in a pipeline."""
    case.asked_to_stop = True
    case.after()
    case.after(5.0)
    assert all(child.alive() for child in case.children.values())
    with pytest.raises(RunStopped, match="the last checkpoint is kept"):
        case.after(5.0)
    assert not any(child.alive() for child in case.children.values())


def test_a_master_that_saves_for_long_is_waited_for(case):
    """It was killed after six seconds, and all since the last checkpoint was lost."""
    case.asked_to_stop = True
    case.after()
    case.says(1, RankStopped("stopped after step 6"))
    for _ in range(3):
        case.after(5.0)
    assert all(child.alive() for child in case.children.values())
    case.says(0, RankStopped("stopped after step 6"))
    with pytest.raises(RunStopped, match="after step 6"):
        case.after()


def test_an_error_of_a_rank_is_the_groups(case):
    case.says(1, RankFailed("The loss is nan"))
    case.after()
    assert case.group.machine.state == "failed"
    assert case.group.failed == "The loss is nan"


def test_processes_that_never_come_up_end_it_with_their_reason(tmp_path):
    case = Case(tmp_path)
    for child in case.children.values():
        child.die(1)
    case.after()
    assert case.group.machine.state == "failed"
    assert "before it was ready" in case.group.failed


def test_a_standby_that_dies_is_replaced_and_nobody_stops(case):
    case.train(5)
    case.after()
    case.children["rank-process-2"].die()
    assert case.after() == ["rank_lost"]
    assert case.group.machine.state == "training"
    assert "rank-process-3" in case.children


def test_the_result_is_the_masters(case):
    case.says(0, RankDone({"top1": 90.0}))
    case.after()
    assert case.group.machine.state == "done"
    assert case.group.result == {"top1": 90.0}
    case.group.close()
    assert all(child.orders[-1] == {"end": True} for child in case.children.values())
