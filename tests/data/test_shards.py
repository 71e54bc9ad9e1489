import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.data.shards import Shards
from kdlab.errors import BadInput

IDS = np.arange(100, 400, dtype=np.int64)
LABELS = np.arange(500, dtype=np.int64) % 10


@settings(max_examples=50)
@given(st.sampled_from(["iid", "dirichlet"]), st.integers(1, 6), st.integers(0, 99))
def test_every_image_is_dealt_once(kind, workers, seed):
    parts = Shards(kind=kind, seed=seed).dealt(IDS, LABELS, workers, 2)
    assert len(parts) == workers
    assert np.array_equal(np.sort(np.concatenate(parts)), IDS)
    again = Shards(kind=kind, seed=seed).dealt(IDS, LABELS, workers, 2)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_iid_parts_are_of_one_size_and_dirichlet_parts_lean():
    even = Shards().dealt(IDS, LABELS, 4, 8)
    assert {len(part) for part in even} == {75}
    skewed = Shards(kind="dirichlet", concentration=0.1).dealt(IDS, LABELS, 4, 8)

    def largest_share(part):
        return np.bincount(LABELS[part], minlength=10).max() / len(part)

    assert np.mean([largest_share(p) for p in skewed]) > 1.5 * np.mean(
        [largest_share(p) for p in even]
    )


def test_all_images_for_every_worker_each_in_its_own_order():
    deal = Shards(kind="all")
    parts = deal.dealt(IDS, LABELS, 40, 8)  # so many could not have a batch each
    assert all(np.array_equal(part, IDS) for part in parts)
    assert len({deal.order(7, worker) for worker in range(40)}) == 40
    assert deal.order(7, 0) == 7
    assert {Shards().order(7, worker) for worker in range(40)} == {7}


def test_too_many_workers():
    with pytest.raises(BadInput, match="300 training images are too few for 40 workers"):
        Shards().dealt(IDS, LABELS, 40, 8)
    with pytest.raises(BadInput, match=r"concentration 0\.001"):
        Shards(kind="dirichlet", concentration=0.001).dealt(IDS, LABELS, 8, 35)
