"""When a loop logs and saves, on a clock of the test."""

from kdlab.testing.scripted import FakeClock
from kdlab.train.cadence import Cadence, logging


def test_seconds_count_from_when_it_was_done_last() -> None:
    clock = FakeClock()
    every = Cadence(30.0, clock=clock)
    clock.advance(29.9)
    assert not every.due(7)
    clock.advance(0.1)
    assert every.due(7)
    every.done(7)
    assert not every.due(8)
    clock.advance(30.0)
    assert every.due(8)


def test_steps_are_whole_multiples_and_none_twice() -> None:
    every = Cadence(None, 4, clock=FakeClock())
    due = []
    for step in range(1, 13):
        if every.due(step):
            due.append(step)
            every.done(step)
        assert not every.due(step)
    assert due == [4, 8, 12]


def test_steps_that_are_passed_over_are_due_at_the_next() -> None:
    every = Cadence(None, 10, clock=FakeClock())
    assert not every.due(8)
    assert every.due(16)  # a loop that looks every eight steps
    every.done(16)
    assert not every.due(19)
    assert every.due(24)


def test_it_counts_from_where_a_resumed_loop_begins() -> None:
    every = Cadence(None, 10, clock=FakeClock())
    every.done(47)
    assert not every.due(48)
    assert every.due(50)


def test_either_is_enough() -> None:
    clock = FakeClock()
    every = Cadence(10.0, 100, clock=clock)
    assert every.due(100)
    assert not every.due(99)
    clock.advance(10.0)
    assert every.due(99)
    assert every.seconds_due()
    assert not every.steps_due(99)


def test_log_lines_go_by_steps_where_the_recipe_says_so() -> None:
    clock = FakeClock()
    by_steps, by_seconds = logging(0.2, 5, clock), logging(0.2, None, clock)
    clock.advance(1.0)
    assert not by_steps.due(4)
    assert by_steps.due(5)
    assert by_seconds.due(4)
