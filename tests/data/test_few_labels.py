"""Few labels: a teacher teaches all images, labels alone teach what they can."""

from dataclasses import replace

import numpy as np
import pytest

from kdlab.config.check import construct
from kdlab.config.load import compose_card, from_dict
from kdlab.data.images import DataSpec
from kdlab.data.samples import described, planned
from kdlab.data.sampling import Sampler
from kdlab.data.splits import NO_LABEL


def clothes(**more):
    block = compose_card("data/clothes")
    block.data.update({"labels_per_class": 5} | more)
    return construct(DataSpec, block)


@pytest.fixture(scope="module", params=["encoded", "decoded"])
def spec(request):
    return clothes(kept=request.param)


def test_so_many_of_each_class_keep_their_label(spec):
    data, full = spec.load(), replace(spec, labels_per_class=None).load()
    labels = data.labels[data.train]
    assert np.bincount(labels[labels >= 0]).tolist() == [5] * 10
    assert data.unlabelled == len(data.train) - 50
    known = data.labels != NO_LABEL
    assert np.array_equal(data.labels[known], full.labels[known])
    for part in ("train", "validation", "test"):
        assert np.array_equal(getattr(data, part), getattr(full, part))
    assert known[data.test].all()
    assert known[data.validation].all()
    assert data.digest == full.digest  # soft labels are of the images


def test_another_seed_leaves_others(spec):
    first, second = (replace(spec, split_seed=seed).load() for seed in (0, 1))
    assert not np.array_equal(first.labels != NO_LABEL, second.labels != NO_LABEL)


def test_labels_alone_are_drawn_as_often_as_there_are_images():
    data = clothes().load()
    labelled = data.labelled_only()
    ids = Sampler(labelled.sampling, labelled.labels).epoch(0, 0, labelled.train)
    assert len(ids) == len(data.train)
    rows = labelled.rows(ids)
    assert (labelled.labels[rows] >= 0).all()
    assert np.bincount(labelled.labels[rows]).min() > 0.5 * len(ids) / 10
    assert len(np.unique(ids)) == len(ids)  # each time another view


def test_another_process_draws_the_same():
    data = clothes().load()
    samples = planned(data.labelled_only(), clothes().to_dict(), batch=64, seed=3, epochs=2)
    facts = samples.describe()
    again = described(
        construct(DataSpec, from_dict(dict(facts.data), "samples")).load(), facts
    )
    for batch, repeated in zip(samples.batches(1), again.batches(1), strict=True):
        assert np.array_equal(batch, repeated)


def test_a_set_with_all_labels_is_as_it_was():
    data = replace(clothes(), labels_per_class=None).load()
    assert data.labelled_only() is data
