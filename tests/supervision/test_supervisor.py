"""Who came up, spoke, fell silent and died: children that are a script, a clock that is told."""

from math import inf

import pytest

from kdlab.errors import ClusterError
from kdlab.supervision.backoff import Backoff
from kdlab.supervision.supervisor import (
    ChildLost,
    ChildMessage,
    ChildReady,
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
        ChildMessage("a", {"done": 1}),
        ChildMessage("b", {"done": 2}),
    ]
    assert supervisor.ready == {"a"}
    assert list(supervisor.events()) == []


def test_last_words_come_before_the_loss(watched):
    supervisor, children = watched
    children["a"].say(ready=True)
    children["a"].say(lost="the disk is full")
    children["a"].die(3)
    *earlier, lost = supervisor.events()
    assert [type(event) for event in earlier] == [ChildReady, ChildMessage]
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


# Those that are started again


@pytest.fixture
def restarting(clock):
    """A supervisor of a child that is started again twice, after 2 and 4 seconds."""
    supervisor, started = Supervisor(clock), []

    def start():
        started.append(ScriptedChild(len(started)))
        return started[-1]

    supervisor.keep("a", start, Backoff(2.0, most=2))
    assert list(supervisor.events()) == []
    return supervisor, started


def test_one_that_is_kept_comes_back_until_it_is_given_up(restarting, clock):
    supervisor, started = restarting
    waits = []
    for _ in range(3):
        started[-1].die()
        waits += [lost.again_s for lost in supervisor.events()]
        for _ in range(10):
            clock.advance(1.0)
            assert list(supervisor.events()) == []
    assert waits == [2.0, 4.0, inf]
    assert len(started) == 3
    assert not supervisor.children


def after_its_death(restarting, clock, seconds):
    """The supervisor and all that it started, so long after the first one died."""
    supervisor, started = restarting
    started[0].die()
    list(supervisor.events())
    clock.advance(seconds)
    list(supervisor.events())
    return supervisor, started


def test_one_that_is_kept_comes_back_when_its_wait_is_over(restarting, clock):
    supervisor, started = after_its_death(restarting, clock, 1.9)
    assert len(started) == 1
    clock.advance(0.1)
    list(supervisor.events())
    assert supervisor.children == {"a": started[1]}


def test_one_that_was_meant_to_end_stays_away(restarting, clock):
    supervisor, started = restarting
    started[0].die(0)
    for lost in supervisor.events():
        supervisor.drop(lost.name)
    clock.advance(99.0)
    assert list(supervisor.events()) == []
    assert len(started) == 1


@pytest.mark.parametrize("error", [OSError(12, "no memory"), ClusterError("no memory")])
def test_one_that_cannot_be_started_is_lost_and_tried_again(clock, error):
    supervisor, ends = Supervisor(clock), [error]

    def start():
        if ends:
            raise ends.pop()
        return ScriptedChild()

    supervisor.keep("a", start, Backoff(2.0))
    (lost,) = supervisor.events()
    assert (lost.name, lost.exit_code, lost.again_s) == ("a", None, 2.0)
    assert "no memory" in lost.why
    clock.advance(2.0)
    assert list(supervisor.events()) == []
    assert supervisor.children.keys() == {"a"}


def test_none_comes_back_after_the_end(restarting, clock):
    supervisor, started = restarting
    started[0].die()
    list(supervisor.events())
    supervisor.close(5.0)
    clock.advance(99.0)
    assert list(supervisor.events()) == []
    assert len(started) == 1


def test_the_end_finds_those_that_came_back(restarting, clock):
    supervisor, started = after_its_death(restarting, clock, 2.0)
    supervisor.close(5.0)
    assert not started[1].alive()
