import pytest

from kdlab.papers.edl_dist.shares import global_rate


def test_edl_130_equal_shares_are_bound_by_the_slowest_and_measured_ones_are_not():
    """V100 and P4, 14 and 5.5 TFLOPS: the ratio of their speeds."""
    rates = [14.0, 5.5]
    assert global_rate(rates, [1, 1]) == 11.0  # less than the V100 alone
    assert global_rate(rates, rates) == pytest.approx(19.5)
