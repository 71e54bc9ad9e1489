"""Who came up, spoke, fell silent and died: children that are a script, a clock that is told."""

import pytest

from kdlab.supervision.supervisor import (
    ChildLost,
    ChildReady,
    ChildSaid,
    ChildSilent,
    Supervisor,
)
from kdlab.testing.scripted import FakeClock, ScriptedChild


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def watched(clock):
    """A supervisor of two children."""
    supervisor = Supervisor(clock)
    children = {name: ScriptedChild(pid) for pid, name in enumerate("ab")}
    for name, child in children.items():
        supervisor.add(name, child)
    return supervisor, children


def patient(sign):
    return 10.0


def test_what_a_child_says_is_told_in_its_order(watched):
    supervisor, children = watched
    children["a"].say(ready=True)
    children["a"].say(done=1)
    children["b"].say(done=2)
    assert list(supervisor.events()) == [
        ChildReady("a"),
        ChildSaid("a", {"done": 1}),
        ChildSaid("b", {"done": 2}),
    ]
    assert supervisor.ready == {"a"}
    assert list(supervisor.events()) == []


def test_last_words_come_before_the_loss(watched):
    supervisor, children = watched
    children["a"].say(ready=True)
    children["a"].say(lost="the disk is full")
    children["a"].die(3)
    *said, lost = supervisor.events()
    assert [type(event) for event in said] == [ChildReady, ChildSaid]
    assert (lost.name, lost.exit_code, lost.was_ready) == ("a", 3, True)
    assert "exit code 3" in lost.why
    assert list(supervisor.children) == ["b"]
    assert not supervisor.ready


def test_a_child_that_never_came_up_is_told_from_one_that_did(watched):
    supervisor, children = watched
    children["b"].die(1)
    (lost,) = supervisor.events()
    assert isinstance(lost, ChildLost)
    assert not lost.was_ready
    assert "before it was ready" in lost.why


def test_only_who_has_something_to_do_may_not_be_silent(watched, clock):
    supervisor, children = watched
    supervisor.expect("a")
    clock.advance(11)
    assert list(supervisor.events(patient)) == [ChildSilent("a", 11.0)]
    assert list(supervisor.events(patient)) == []  # once
    supervisor.expect("b")
    clock.advance(9)
    children["b"].beat(1, 5, clock.now)
    clock.advance(9)
    assert list(supervisor.events(patient)) == []
    supervisor.rest("b")
    clock.advance(99)
    assert list(supervisor.events(patient)) == []


def test_who_is_lost_has_nothing_to_do_any_more(watched):
    supervisor, children = watched
    supervisor.expect("a")
    assert supervisor.busy == ["a"]
    children["a"].die()
    list(supervisor.events())
    assert supervisor.busy == []
    assert not supervisor.send("a", train=1)  # its loss was told


def test_a_child_of_the_same_name_is_another_one(watched):
    supervisor, children = watched
    children["a"].say(ready=True)
    list(supervisor.events())
    children["a"].die()
    list(supervisor.events())
    supervisor.add("a", ScriptedChild(9))
    assert "a" not in supervisor.ready
    assert supervisor.children["a"].pid == 9


def test_all_are_told_to_end_before_any_is_waited_for(watched):
    supervisor, children = watched
    supervisor.close(5.0)
    assert all(child.orders == [{"end": True}] for child in children.values())
    assert not any(child.alive() for child in children.values())
    assert not supervisor.children
