import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.ec_dnn import metrics
from kdlab.papers.ec_dnn.metrics import Point
from kdlab.papers.ec_dnn.parallel import Busy, Network, round_s


def test_equations_7_and_8():
    assert metrics.better_than_locals([10.0, 12.0], 9.0) == pytest.approx(2.0)
    assert metrics.compression_gain([10.0, 12.0], [9.0, 9.0]) == pytest.approx(2.0)
    assert metrics.worse_share([1.0, -0.5, 0.0, -2.0]) == 0.5


def points(*pairs):
    return [Point(*pair) for pair in pairs]


MA = points((10, 60.0), (20, 50.0), (30, 46.0), (40, 44.0))  # within a point at 35 s of 40


def test_a_time_is_read_along_lines_of_the_smallest_error_so_far():
    curve = points((10, 50.0), (20, 40.0), (30, 60.0), (40, 40.0), (50, 30.0))
    assert metrics.time_to(curve, 45.0) == 15
    assert metrics.time_to(curve, 35.0) == 45
    assert metrics.time_to(curve, 40.0) == 40  # it lies there from 20 s on, to 40 s
    assert metrics.time_to(curve, 30.0) == 50
    assert metrics.time_to(curve, 29.9) is None
    assert metrics.time_to(curve, 55.0) == 10  # below it at the first look


def test_o10_speed_is_the_baselines_time_over_the_methods_to_the_same_error():
    fast = points((5, 60.0), (20, 44.0), (25, 40.0))
    assert metrics.speed(fast, MA) == 2.0
    assert metrics.speed(points((5, 60.0), (25, 40.0)), MA) == pytest.approx(40 / 21)
    assert metrics.speed(MA, MA) == 1.0
    never = points((5, 50.0), (100, 44.1))
    assert metrics.speed(never, MA) == 0.0


def test_speed_counts_what_was_reached_even_when_it_gets_worse_again():
    assert metrics.speed(points((20, 40.0), (30, 60.0)), MA) == 2.0


def test_speed_is_undefined_where_the_baseline_is_at_its_end_early():
    """50 to 44.5 % within 5 s of 20: by the first touch any ratio would do."""
    flat = points((2, 60.0), (5, 44.5), (20, 44.0))
    # 45 % is on the line from (2 s, 60 %) to (5 s, 44.5 %): 15 of 15.5 points.
    assert metrics.early(flat) == pytest.approx((2 + 3 * 15 / 15.5) / 20)
    assert metrics.speed(points((4, 40.0), (20, 30.0)), flat) is None
    assert metrics.early(MA) is None
    noisy = points((2, 60.0), (5, 44.0), (20, 46.0))  # its best is what it comes to
    assert metrics.speed(points((4, 40.0)), noisy) is None


def test_budgets_are_compared_by_the_ends_of_their_trainings():
    ma = points((5, 60.0), (10, 52.0), (20, 44.0))
    ec = points((5, 58.0), (10, 48.0), (20, 40.0))
    assert metrics.speed(ec, ma) == pytest.approx(20 / 15)  # 44 % half way from 10 to 20 s


def test_equation_3_is_checked_with_both_numbers():
    metrics.check_ensemble(1.0, [1.0, 1.0])
    metrics.check_ensemble(0.9, [0.8, 1.1])
    with pytest.raises(ValueError, match=r"1\.2 and the mean of its 2 models is 1"):
        metrics.check_ensemble(1.2, [0.9, 1.1])
    with pytest.raises(ValueError, match="nan"):
        metrics.check_ensemble(float("nan"), [0.9, 1.1])


def test_a_round_waits_for_the_slowest_before_and_after_the_exchange():
    first, second = Busy(3.0, 1.0, 1.0), Busy(2.0, 2.0, 1.5)
    assert round_s([first, second], 0.5) == 3.0 + 0.5 + 3.5


@given(st.integers(2, 64), st.integers(1, 10**9))
def test_an_exchange_grows_with_k_and_an_all_reduce_hardly(workers, size):
    network = Network(latency_s=0.0)
    ec = network.communication_s("ensemble", workers, size)
    ma = network.communication_s("model_average", workers, size)
    assert ec == pytest.approx(ma * workers / 2)
    assert network.communication_s("none", workers, size) == 0.0
