"""Targets of chaos: processes of this machine, as their pool knows them."""

import os

import pytest
from small_experiments import ScriptedPool

from kdlab.cluster.chaos import Chaos, Target
from kdlab.cluster.coordination.coordinator_messages import (
    PoolStatus,
    TeacherStatus,
)
from kdlab.errors import SchedulerUnreachable
from kdlab.events.teachers import ChaosCaused
from kdlab.experiment.chaos_targets import OwnTargets, by_pid, chaos_while
from kdlab.papers.edl_dist.teacher_info import TeacherInfo


def teacher(name, pid, address="tls://127.0.0.1:5", device="cpu"):
    facts = TeacherInfo(
        name=name, pid=pid, device=device, threads=1, best_batch=8, by_reference=True,
        wire_port=6,
    )  # fmt: skip
    return TeacherStatus(address, "free", {}, 10.0, 0.1, facts)


def pool_of(*teachers):
    return PoolStatus(deployed="f", expired=0, renewals=0, students={}, teachers=teachers)


def test_only_processes_of_this_machine_have_a_pid_that_means_something():
    coming = TeacherStatus("tls://127.0.0.1:9", "registered", {}, 0.0, 0.1)
    status = pool_of(
        teacher("a", 11),
        teacher("elsewhere", 12, address="tls://10.0.0.7:5"),
        teacher("emulated", os.getpid(), device="emulated"),
        coming,
    )
    targets = by_pid("tls://127.0.0.1:1", {"ca": "x"}, lambda address, tls: status)
    assert targets == {11: Target("a", 11, "tls://127.0.0.1:5")}


def test_of_a_pool_that_is_gone_nobody_can_be_hit():
    def gone(address, tls):
        raise SchedulerUnreachable(address, 0.0, "nobody answers")

    assert by_pid("tls://127.0.0.1:1", None, gone) == {}


def test_own_teachers_are_those_of_the_pool_that_live(local_pool):
    pool = local_pool(teachers=3)
    first, _, third = (child.pid for child in pool.machines.children)
    known = {
        pid: Target(f"teacher-{pid}", pid) for pid in (first, third, 999)
    }  # the second loads still, and somebody else's is there too
    targets = OwnTargets(pool, find_targets=lambda address, tls: known)
    assert [t.pid for t in targets.teachers()] == [first, third]
    pool.machines.children[0].die()
    assert [t.pid for t in targets.teachers()] == [third]
    targets.add_teacher()
    assert len(pool.machines.children) == 4
    assert targets.main() == targets.processes() == targets.helpers() == []
    assert targets.files("damage_status") == []


@pytest.mark.parametrize("pool", [None, ScriptedPool()], ids=("none", "somebody else's"))
def test_teachers_of_other_pools_are_not_hit(pool):
    targets = OwnTargets(
        pool, find_targets=lambda address, tls: pytest.fail("it was asked")
    )
    assert targets.teachers() == []
    targets.add_teacher()  # and none is added


def test_without_chaos_nothing_is_caused():
    with chaos_while(None, pytest.fail, None, list) as targets:
        assert targets is None


def test_chaos_hits_the_ranks_of_the_run_while_its_block_goes_on():
    """Each hit has its event, even where the rank has ended by then."""
    gone = Target("rank-0", 2**22 + 5)  # no system has such a pid
    events = []
    chaos = Chaos(kill_rank=1, events=2, every_s=1e-4, seed=0)
    with chaos_while(chaos, events.append, None, lambda: [gone]) as targets:
        assert targets.ranks() == [gone]
        assert targets.pool is None
        while len(events) < 2:
            os.sched_yield()
    assert {type(e) for e in events} == {ChaosCaused}
    assert [(e.kind, e.target, e.number) for e in events] == [
        ("kill_rank", "rank-0", 1),
        ("kill_rank", "rank-0", 2),
    ]


def test_chaos_ends_with_its_block():
    asked = []
    chaos = Chaos(kill_rank=1, events=1, every_s=1e6, seed=0)
    with (
        pytest.raises(ZeroDivisionError),
        chaos_while(chaos, pytest.fail, None, lambda: asked.append(1) or []),
    ):
        raise ZeroDivisionError
    assert asked == []
