"""Threads that make views: all images once, how many by measurement, results ahead of need."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.data.encoded.view_threads import ThreadCount, computed_ahead, run_in_threads


@given(st.integers(0, 70), st.integers(1, 5))
def test_every_image_is_made_once(images, threads):
    numbers = []
    run_in_threads(numbers.extend, images, threads)
    assert sorted(numbers) == list(range(images))


def test_what_interrupts_the_asking_thread_leaves_nothing_for_the_others():
    """They once made all the rest first: minutes, for a large set on a slow disk."""
    main, began, batches = threading.current_thread(), threading.Event(), []

    def work(numbers):
        if threading.current_thread() is main:
            began.wait(30)
            raise KeyboardInterrupt
        began.set()
        threading.Event().wait(0.001)
        batches.append(numbers)

    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work, 100_000, 2)
    assert sum(map(len, batches)) < 90_000


def test_an_error_in_any_thread_is_raised_after_all_have_ended():
    def work(numbers):
        if 17 in numbers:
            raise ValueError("image 17")

    with pytest.raises(ValueError, match="image 17"):
        run_in_threads(work, 64, 3)


@given(
    st.integers(1, 64),
    st.lists(st.floats(0.1, 100), min_size=7, max_size=7),
)
def test_the_fewest_threads_that_are_nearly_as_quick_as_the_best(cores, rates):
    count, tried = ThreadCount(cores), {}
    for _ in range(100):
        threads = count.next()
        tried.setdefault(threads, rates[len(tried) % 7])
        count.record(threads, 1000, 1000 / tried[threads])
    assert {1, cores} <= set(tried)
    best = max(tried.values())
    assert count.next() == min(n for n, rate in tried.items() if rate >= 0.95 * best)


def test_batches_too_small_to_keep_all_busy_say_nothing():
    count = ThreadCount(4)
    for _ in range(100):
        count.record(count.next(), 8, 1.0)
    assert count.next() == 4


def test_results_come_in_order_and_no_more_than_some_are_ahead():
    begun, may = [], threading.Semaphore(0)

    def make(number):
        begun.append(number)
        may.acquire()
        return number * number

    results = computed_ahead(make, range(6), ahead=2)
    for _ in range(3):
        may.release()
    assert next(results) == 0
    assert next(results) == 1
    assert len(begun) <= 5  # two taken, two ready, one being made
    for _ in range(3):
        may.release()
    assert list(results) == [4, 9, 16, 25]


def test_an_error_comes_where_its_result_would():
    def make(number):
        if number == 2:
            raise ValueError("number 2")
        return number

    results = computed_ahead(make, range(4))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="number 2"):
        next(results)
