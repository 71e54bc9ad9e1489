"""Slots are handed over in order, whatever has to be made before; the loop goes on meanwhile."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from kdlab.cluster.reader.batches_under_way import BatchesUnderWay, HandOver
from kdlab.papers.edl_dist.in_flight import Part


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
    prepared = []
    before, done = carried_out(
        [(0, None), (2, lambda: prepared.append(2)), (1, None), (3, lambda: 0)]
    )
    assert before == [0]
    assert prepared == [2]
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


class SlowSamples:
    """Views that are made in a thread, counted."""

    def __init__(self):
        self.data = SimpleNamespace(slow=True)
        self.counts, self.may = [], threading.Event()

    def batches(self, epoch):
        return [np.arange(8)]

    def labels(self, ids):
        return ids

    def views(self, ids, epoch, out=None):
        self.may.wait()
        self.counts.append(len(ids))
        views = np.zeros((len(ids), 1, 2, 2), np.uint8)
        if out is not None:
            out[...] = views
        return views


def test_views_by_value_are_made_once_for_all_parts_and_none_are_left_over():
    samples = SlowSamples()
    batches = BatchesUnderWay(samples, 3, None)
    parts = [Part(0, 0, start, start + 4) for start in (0, 4)]

    async def go():
        asked = [asyncio.ensure_future(batches.views(part, keep=True)) for part in parts]
        await asyncio.sleep(0)
        for part in parts:  # another teacher answers before the views are made
            batches.put(part, np.zeros((4, 3), np.float32), "eager fp32")
        slot = SimpleNamespace(head=np.zeros(3, np.int64), ids=np.zeros(8, np.int64),
                               labels=np.zeros(8, np.int64), soft=np.zeros((8, 3), np.float32),
                               views=np.zeros((8, 1, 2, 2), np.uint8))  # fmt: skip
        count, left = batches.move_to(slot, 0, 0)
        samples.may.set()
        assert [len(views) for views in await asyncio.gather(*asked)] == [4, 4]
        left()
        assert count == 8

    asyncio.run(go())
    assert samples.counts == [8, 8]  # once for both parts, once for the trainer
    assert not batches._making
    assert not batches._views
