"""Kept answers are those that were given, whatever came and went between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.cluster.deployment import Deployment
from kdlab.cluster.teachers.inference import Inference, Request
from kdlab.cluster.teachers.label_cache import LabelCache
from kdlab.cluster.teachers.loaded_model import RunningRate
from kdlab.cluster.teachers.probe import identity_of
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec

SAMPLES, CLASSES = 12, 3
ROW = 4 * CLASSES + 8  # bytes


def answers(epoch, ids):
    """Return the teacher's answer: another number for each sample, epoch and class."""
    base = 100 * epoch + np.asarray(ids, np.float32)
    return np.stack([base + k / 10 for k in range(CLASSES)], axis=1).astype(np.float32)


batches = st.lists(
    st.tuples(
        st.integers(0, 3), st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=8)
    ),
    max_size=30,
)


@settings(deadline=None)
@given(capacity=st.integers(0, 20), asked=batches)
def test_what_is_found_is_what_was_kept_and_the_newest_of_it(capacity, asked):
    cache = LabelCache(SAMPLES, CLASSES, capacity * ROW)
    assert cache.capacity == capacity
    newest = []  # (epoch, id), oldest first, as they were written
    for epoch, listed in asked:
        ids = np.array(listed)
        rows, known = cache.find(epoch, ids)
        expected = [(epoch, i) in newest for i in ids]
        assert known.tolist() == expected
        assert np.array_equal(rows[known], answers(epoch, ids)[known])
        cache.put(epoch, ids, answers(epoch, ids))
        new = [(epoch, i) for i in np.unique(ids) if (epoch, i) not in newest]
        newest = (newest + new[:capacity])[-capacity:] if capacity else []


def test_nothing_of_an_engine_that_was_given_up_is_left():
    cache = LabelCache(SAMPLES, CLASSES, 10 * ROW)
    ids = np.arange(4)
    cache.put(0, ids, answers(0, ids))
    cache.clear()
    assert not cache.find(0, ids)[1].any()


def loaded(block):
    spec = construct(DataSpec, from_dict(block, "data"))
    return spec, spec.load()


@pytest.fixture(scope="module")
def teacher():
    return loaded({"type": "data/digits", "size": 8})


def serving(data_spec, data, share=True):
    deployment = Deployment(
        members=(),
        teacher="t",
        num_classes=len(data.classes),
        shape=data.shape,
        batch=16,
        data=data_spec.to_dict(),
        identity=identity_of(data),
        by_reference=True,
        components={},
        share_answers=share,
    )

    class Counting(Inference):
        """From no file: the model is a sum over pixels, and what it is asked is counted."""

        def _load(self, weights):
            self.computed, classes = [], self.deployment.num_classes

            def summed(views):
                self.computed.append(len(views))
                flat = views.reshape(len(views), -1).float()
                return flat[:, :classes] + flat.sum(1, keepdim=True)

            return summed

    inference = Counting(deployment, [], 1, "cpu")
    inference.load_data()
    return inference


def compute(inference, requests):
    for under_way in inference.begin(requests):
        inference.finish(under_way)


def asked(inference, epoch, ids):
    got = []
    request = Request(epoch, np.array(ids), None, got.append, inference)
    compute(inference, [inference.expect(request)])
    (labels,) = got
    assert not isinstance(labels, Exception), labels
    return labels


def test_a_second_student_costs_nothing_and_gets_the_same(teacher):
    shared, unshared = serving(*teacher), serving(*teacher, share=False)
    first, second = asked(shared, 0, range(8)), asked(shared, 0, range(8))
    assert shared.computed == [8]
    assert np.array_equal(first, second)
    # Another epoch has other views; of a batch that is known in part, the rest is computed.
    asked(shared, 1, range(8))
    mixed = asked(shared, 0, [20, 3, 21, 5])
    assert shared.computed == [8, 8, 2]
    assert np.array_equal(mixed, asked(unshared, 0, [20, 3, 21, 5]))
    assert (shared.cache.asked, shared.cache.hits) == (28, 10)
    assert unshared.cache is None


def test_a_check_is_computed_and_what_it_finds_counts_from_then_on(teacher):
    """A teacher that repeats what it kept would never contradict itself."""
    inference, got = serving(*teacher), []
    right = asked(inference, 0, [1, 2])
    inference.cache.put(0, np.array([1, 2]), right + 1)  # bad memory, once
    fresh = Request(0, np.array([1, 2]), None, got.append, inference, fresh=True)
    compute(inference, [inference.expect(fresh)])
    assert np.array_equal(got[0], right)
    assert inference.computed == [2, 2]
    assert np.array_equal(asked(inference, 0, [1, 2]), right)
    assert inference.computed == [2, 2]


def test_requests_of_several_students_are_one_batch_of_what_is_missing(teacher):
    inference, got = serving(*teacher), []
    asked(inference, 0, [1, 2])
    requests = [
        Request(0, np.array(ids), None, got.append, inference)
        for ids in ([1, 3], [2, 1], [4, 5])
    ]
    compute(inference, [inference.expect(request) for request in requests])
    assert inference.computed == [2, 3]
    right = serving(*teacher, share=False)
    for request, answer in zip(requests, got, strict=True):
        assert np.array_equal(answer, asked(right, 0, request.ids))


def test_what_is_begun_is_answered_by_its_own_labels_whatever_begins_meanwhile(teacher):
    """On a GPU the next requests are there before those under way are answered."""
    inference, got = serving(*teacher, share=False), {}
    asked_for = [np.arange(k, k + 3) for k in range(6)]
    under_way = []
    for number, ids in enumerate(asked_for):

        def keep(answer, number=number):
            got[number] = answer

        under_way += inference.begin([Request(0, ids, None, keep, inference)])
    assert not got
    for batch in under_way:
        assert batch.is_done
        inference.finish(batch)
    right = serving(*teacher, share=False)
    for number, ids in enumerate(asked_for):
        assert np.array_equal(got[number], asked(right, 0, ids))
    assert inference.answered == len(asked_for)


def test_the_rate_is_of_all_samples_over_all_seconds(teacher):
    """Two that were ready together took no time in turn: a mean of rates came to millions."""
    inference = serving(*teacher, share=False)
    inference.t_t, inference.best_batch = 1000.0, 16
    pace = RunningRate(16, 0.016)
    for _ in range(200):
        pace.add(16, 0.032)
        inference.t_t = pace.add(16, 0.0)
    assert inference.t_t == pytest.approx(1000, rel=0.06)
    for number in range(40):
        under_way = [
            batch
            for k in range(2)
            for batch in inference.begin(
                [Request(number, np.arange(16), None, lambda a: None, inference)]
            )
        ]
        for batch in under_way:
            inference.finish(batch)
    assert inference.t_t < 1e6


def test_views_that_take_long_are_begun_for_what_is_missing_on_arrival(kdlab_home):
    photos = {"type": "data/image_folder", "root": "kdlab://clothes.zip", "size": 32}
    spec, data = loaded({**photos, "kept": "encoded", "augment": {"flip": True}})
    assert data.slow
    inference, right = serving(spec, data), serving(spec, data, share=False)
    first = asked(inference, 0, range(4))
    assert np.array_equal(asked(inference, 0, range(4)), first)  # nothing is begun at all
    got, early = [], []
    late = Request(0, np.array([0, 5, 6, 1]), None, got.append, inference)
    quick = Request(0, np.array([6, 7]), None, early.append, inference)
    inference.expect(late)  # 5 and 6 are begun
    compute(inference, [inference.expect(quick)])  # and 6 is kept before it is its turn
    compute(inference, [late])
    assert inference.computed == [4, 2, 2]  # 5 alone, as a batch of two
    assert np.array_equal(got[0], asked(right, 0, [0, 5, 6, 1]))
    inference.expect(late)  # all are kept ...
    inference.cache.clear()  # ... until another engine takes over
    compute(inference, [late])
    assert np.array_equal(got[1], got[0])
