"""Slots are handed over in order, whatever has to be made before; the loop goes on meanwhile."""

import asyncio
import threading

import pytest

from kdlab.cluster.reader.hand_over import HandOver


def carried_out(steps):
    """Slots in the order in which they were handed over."""
    done = []

    async def go():
        tasks = []
        hand_over = HandOver(
            done.append, lambda work: tasks.append(asyncio.ensure_future(work))
        )
        for step in steps:
            hand_over.add(*step)
        before = list(done)
        while tasks:
            await tasks.pop()
        return before

    return asyncio.run(go()), done


def test_what_is_ready_goes_at_once():
    assert carried_out([(3, None), (1, None)]) == ([3, 1], [3, 1])


def test_what_is_ready_waits_for_what_is_made_before_it():
    made = []
    before, done = carried_out(
        [(0, None), (2, lambda: made.append(2)), (1, None), (3, lambda: 0)]
    )
    assert before == [0]
    assert made == [2]
    assert done == [0, 2, 1, 3]


def test_work_is_done_in_another_thread():
    threads = []
    carried_out([(0, lambda: threads.append(threading.current_thread()))])
    assert threads[0] is not threading.main_thread()


def test_work_that_fails_hands_nothing_over():
    def broken():
        raise ValueError("this image is gone")

    async def go():
        tasks, done = [], []
        hand_over = HandOver(
            done.append, lambda work: tasks.append(asyncio.ensure_future(work))
        )
        hand_over.add(0, broken)
        hand_over.add(1, None)
        with pytest.raises(ValueError, match="gone"):
            await tasks[0]
        assert done == []

    asyncio.run(go())
