"""The timetable of trouble: seeded, in proportion, and checked before a run."""

from collections import Counter

import pytest

import kdlab
from kdlab.cluster.chaos import FROM_OUTSIDE, Chaos, timetable
from kdlab.errors import SpecError


def test_the_same_seed_gives_the_same_trouble():
    assert timetable(Chaos(seed=3, kill_teacher=1)) == timetable(
        Chaos(seed=3, kill_teacher=1)
    )
    assert timetable(Chaos(seed=3, kill_teacher=1)) != timetable(
        Chaos(seed=4, kill_teacher=1)
    )


def test_kinds_come_in_proportion_and_in_order():
    entries = timetable(Chaos(events=2000, kill_teacher=3, stop_teacher=1, every_s=0.5))
    counts = Counter(entry.kind for entry in entries)
    assert set(counts) == {"kill_teacher", "stop_teacher"}
    assert counts["kill_teacher"] / counts["stop_teacher"] == pytest.approx(3, rel=0.15)
    times = [entry.at_s for entry in entries]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(1000, rel=0.1)


def test_trouble_of_no_kind_is_refused():
    with pytest.raises(SpecError, match="nothing would happen"):
        Chaos()


@pytest.mark.parametrize("kind", FROM_OUTSIDE)
def test_what_would_end_the_timetable_itself_is_for_others(kind):
    with pytest.raises(SpecError, match=f"From outside: kdlab chaos RUN {kind}=1"):
        kdlab.load("smoke/served", f"chaos.{kind}=1")


def machines(deployer, **options):
    kind = {"type": f"cluster/deployers/{deployer}", **options}
    return {"teacher_pool": {"type": "cluster/deployed_pool", "most": 1, "machines": kind}}


def test_teachers_on_this_machine_can_be_hit_whoever_started_them():
    kdlab.load("smoke/served", machines("local"), "chaos.kill_teacher=1")
    with pytest.raises(SpecError, match="chaos can hit only teachers on this machine"):
        kdlab.load("smoke/served", machines("ssh", hosts=["a"]), "chaos.kill_teacher=1")


def test_a_slow_link_needs_teachers_that_obey():
    with pytest.raises(SpecError, match="delay_teacher needs it true"):
        kdlab.load("smoke/served", "chaos.delay_teacher=1")
