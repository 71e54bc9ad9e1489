"""Repeated augmentation and weighted sampling: an epoch as long, each copy with its own view."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.data.augment import Augment
from kdlab.data.digits import Digits
from kdlab.data.plan import BatchPlan
from kdlab.data.samples import described, planned
from kdlab.data.sampling import Sampler, Sampling
from kdlab.errors import SpecError
from kdlab.train.lineage import Lineage


def sampler(labels, **asked):
    return Sampler(Sampling(**asked), np.asarray(labels))


@given(st.integers(2, 200), st.integers(1, 9), st.integers(0, 5))
def test_copies_of_an_image_lie_side_by_side(count, repeats, epoch):
    rows = np.arange(0, 3 * count, 3)
    ids = sampler(np.zeros(3 * count, int), repeats=repeats).epoch(0, epoch, rows)
    assert len(ids) == len(set(ids)) == count
    shown = ids % (3 * count)
    assert set(shown) <= set(rows)
    assert len(set(shown)) == -(-count // repeats)
    assert all(len(set(shown[at : at + repeats])) == 1 for at in range(0, count, repeats))


def test_all_images_come_in_time():
    rows = np.arange(90)
    drawn = [
        sampler(np.zeros(90, int), repeats=3).epoch(0, e, rows) % 90 for e in range(40)
    ]
    assert set(np.concatenate(drawn)) == set(rows)
    assert not np.array_equal(drawn[0], drawn[1])


LABELS = np.repeat([0, 1, 2], [900, 90, 10])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"balance": 1.0}, (1 / 3, 1 / 3, 1 / 3)),
        ({"balance": 0.5}, (30 / 42.6, 9.49 / 42.6, 3.16 / 42.6)),
        ({"class_weights": (0, 1, 9)}, (0, 0.5, 0.5)),
    ],
)
def test_classes_are_drawn_as_often_as_asked(asked, expected):
    weighted = sampler(LABELS, **asked)
    shown = np.zeros(3)
    for epoch in range(20):
        ids = weighted.epoch(1, epoch, np.arange(1000))
        assert len(set(ids)) == 1000  # each copy with an id of its own
        shown += np.bincount(LABELS[ids % 1000], minlength=3)
        assert np.array_equal(ids, weighted.epoch(1, epoch, np.arange(1000)))
    assert shown / shown.sum() == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"repeats": 2, "balance": 0.5}, "does not go with balance"),
        ({"balance": 1.0, "class_weights": (1.0,)}, "has no effect with class_weights"),
        ({"class_weights": (0.0, 0.0)}, "nothing would be drawn"),
    ],
)
def test_what_does_not_go_together_is_refused(asked, words):
    with pytest.raises(SpecError, match=words):
        Sampling(**asked)


def digits(**asked):
    return Digits(sampling=Sampling(**asked), augment=Augment(crop_padding=2, seed=1))


def test_copies_have_labels_of_their_row_and_views_of_their_own(kdlab_home):
    spec = digits(repeats=4)
    data = spec.load()
    samples = planned(data, spec.to_dict(), batch=64, seed=0, epochs=2)
    first = samples.batches(0)[0]
    four = first[:4]
    rows = four % len(data.labels)
    assert len(set(rows)) == 1
    assert list(samples.labels(four)) == [data.labels[rows[0]]] * 4
    views = samples.views(four, 0)
    assert len({view.tobytes() for view in views}) > 1
    assert np.array_equal(samples.views(four[:1], 0)[0], samples.views(rows[:1], 0)[0])
    assert first.max() < data.ids_below
    again = described(
        spec.load(), samples.describe()
    )  # as a reader or a teacher makes them
    assert all(map(np.array_equal, again.batches(1), samples.batches(1)))


def test_accounts_are_held_against_the_plan():
    labels = np.zeros(30, int)
    plan = BatchPlan(
        np.arange(10, 30), batch=6, seed=0, epochs=1, sampler=sampler(labels, repeats=2)
    )
    for lost in (0, 1):
        lineage = Lineage.start(30, plan.ids)
        for batch in plan.epoch(0)[lost:]:
            lineage.trained(batch)
        lineage.finish_epoch(None, plan.order(0))
        assert (lineage.lost, lineage.repeated) == (6 * lost, 0)
    lineage = Lineage.start(30, plan.ids)
    for batch in [*plan.epoch(0), np.array([3, 12])]:
        lineage.trained(batch)
    lineage.finish_epoch(None, plan.order(0))
    assert (lineage.lost, lineage.repeated) == (0, 2)
