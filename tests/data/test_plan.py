import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.data.plan import BatchPlan


@given(st.integers(2, 300), st.integers(2, 64), st.integers(0, 5))
def test_every_sample_once_per_epoch(count, batch, epoch):
    plan = BatchPlan(np.arange(count) * 3, batch, seed=1, epochs=9)
    batches = plan.epoch(epoch)
    assert len(batches) == plan.batches
    assert sorted(np.concatenate(batches)) == list(np.arange(count) * 3)
    assert max(map(len, batches)) == plan.largest
    assert min(map(len, batches)) > 1  # batch norm cannot train on one


@pytest.mark.parametrize(
    ("count", "sizes"), [(128, [64, 64]), (130, [64, 64, 2]), (129, [64, 65])]
)
def test_the_rest(count, sizes):
    assert [len(b) for b in BatchPlan(np.arange(count), 64, 0, 1).epoch(0)] == sizes


def test_order_changes_with_epoch_and_seed():
    ids = np.arange(100)
    order = np.concatenate(BatchPlan(ids, 10, 0, 2).epoch(0))
    assert not np.array_equal(order, np.concatenate(BatchPlan(ids, 10, 0, 2).epoch(1)))
    assert not np.array_equal(order, np.concatenate(BatchPlan(ids, 10, 1, 2).epoch(0)))
