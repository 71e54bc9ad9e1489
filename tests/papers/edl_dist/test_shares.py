import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.edl_dist.shares import cut, global_rate


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 500))
def test_all_rows_once_and_at_least_one_each(shares, more):
    counts = cut(len(shares) + more, shares)
    assert sum(counts) == len(shares) + more
    assert min(counts) >= 1


def test_in_proportion():
    assert cut(64, [1, 1]) == [32, 32]
    assert cut(64, [3, 1]) == [48, 16]
    assert cut(3, [1, 1]) == [2, 1]


def test_refuses_what_cannot_be_cut():
    with pytest.raises(ValueError, match="cannot cut 1 rows"):
        cut(1, [1, 1])
    with pytest.raises(ValueError, match="cannot cut"):
        cut(4, [1, 0])


def test_edl_130_equal_shares_are_bound_by_the_slowest_and_measured_ones_are_not():
    """V100 and P4, 14 and 5.5 TFLOPS: the ratio of their speeds."""
    rates = [14.0, 5.5]
    assert global_rate(rates, [1, 1]) == 11.0  # less than the V100 alone
    assert global_rate(rates, rates) == pytest.approx(19.5)
