import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.ec_dnn import metrics
from kdlab.papers.ec_dnn.metrics import Point
from kdlab.papers.ec_dnn.parallel import Busy, Network, overall_s, round_s


def test_equations_7_and_8():
    assert metrics.better_than_locals([10.0, 12.0], 9.0) == pytest.approx(2.0)
    assert metrics.compression_gain([10.0, 12.0], [9.0, 9.0]) == pytest.approx(2.0)
    assert metrics.worse_share([1.0, -0.5, 0.0, -2.0]) == 0.5


def test_o10_speed_reads_nothing_between_two_looks():
    ma = [Point(10, 50.0), Point(20, 45.0), Point(40, 44.0)]
    fast = [Point(5, 60.0), Point(20, 44.0), Point(25, 40.0)]
    never = [Point(5, 50.0), Point(100, 44.1)]
    assert metrics.speed(fast, ma) == 2.0
    assert metrics.speed(ma, ma) == 1.0
    assert metrics.speed(never, ma) == 0.0


def test_speed_counts_the_first_time_even_when_it_gets_worse_again():
    ma = [Point(10, 44.0), Point(40, 44.0)]
    assert metrics.speed([Point(20, 40.0), Point(30, 60.0)], ma) == 0.5


def test_equation_3_is_checked_with_both_numbers():
    metrics.check_ensemble(1.0, [1.0, 1.0])
    metrics.check_ensemble(0.9, [0.8, 1.1])
    with pytest.raises(ValueError, match=r"1\.2 and the mean of its 2 models is 1"):
        metrics.check_ensemble(1.2, [0.9, 1.1])
    with pytest.raises(ValueError, match="nan"):
        metrics.check_ensemble(float("nan"), [0.9, 1.1])


def test_a_round_waits_for_the_slowest_before_and_after_the_exchange():
    one, two = Busy(3.0, 1.0, 1.0), Busy(2.0, 2.0, 1.5)
    assert round_s([one, two], 0.5) == 3.0 + 0.5 + 3.5
    assert overall_s([[one], [two]], 0.5) == 5.5 + 6.0


@given(st.integers(2, 64), st.integers(1, 10**9))
def test_an_exchange_grows_with_k_and_an_all_reduce_hardly(workers, size):
    network = Network(latency_s=0.0)
    ec = network.communication_s("ensemble", workers, size)
    ma = network.communication_s("model_average", workers, size)
    assert ec == pytest.approx(ma * workers / 2)
    assert network.communication_s("none", workers, size) == 0.0
