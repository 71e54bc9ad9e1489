"""When something is tried again: how often within a window, and how long it waits."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from kdlab.supervision.backoff import Backoff


@given(st.lists(st.floats(0, 100), min_size=1), st.integers(0, 5), st.floats(0.1, 50))
def test_no_window_has_more_tries_than_asked(gaps, most, within_s):
    again, now, allowed = Backoff(most=most, within_s=within_s), 0.0, []
    for gap in gaps:
        now += gap
        if again.wait_s(now) < inf:
            allowed.append(now)
        assert sum(now - t < within_s for t in allowed) <= most
    assert bool(allowed) == (most > 0)


def test_each_wait_is_longer_than_the_one_before_up_to_the_longest():
    again = Backoff(0.5, factor=3.0, longest_s=10.0)
    assert [again.wait_s() for _ in range(5)] == [0.5, 1.5, 4.5, 10.0, 10.0]
    again.succeeded()
    assert again.wait_s() == 0.5


def test_it_tries_at_once_where_no_wait_is_asked_for():
    again = Backoff(most=2)
    assert [again.wait_s() for _ in range(3)] == [0.0, 0.0, inf]


def test_waits_grow_with_the_tries_of_the_window_alone():
    again = Backoff(1.0, within_s=60.0)
    assert [again.wait_s(now) for now in (0.0, 10.0, 65.0, 200.0)] == [1.0, 2.0, 2.0, 1.0]


def test_what_is_tried_for_ever_neither_overflows_nor_grows():
    again = Backoff(0.2, longest_s=5.0)
    assert {again.wait_s(now) for now in range(3000)} == {0.2, 0.4, 0.8, 1.6, 3.2, 5.0}
    assert len(again.at) <= 1001


def test_a_thousand_tries_within_the_window_are_the_most():
    again = Backoff(most=1000)
    assert [again.wait_s() for _ in range(1001)].count(inf) == 1


def test_any_number_of_tries_is_counted():
    again = Backoff(most=1500)
    waits = [again.wait_s(float(now)) for now in range(1501)]
    assert waits[-2:] == [0.0, inf]
