"""Where error curves are steep, and their error at a time."""

import pytest

from benchmarks.curves import Readings, error_at, is_steep, steep_target
from kdlab.papers.ec_dnn.metrics import Point
from kdlab.report.figures import printed, report


def points(*pairs):
    return [Point(*pair) for pair in pairs]


def test_a_target_is_steep_where_a_point_less_takes_at_most_a_quarter_longer():
    curve = points((10, 60.0), (20, 50.0), (100, 48.0))
    assert is_steep(curve, 55.0)  # 15 s, and 16 s for 54 %
    assert is_steep(curve, 51.0)  # 19 s, and 20 s
    assert not is_steep(curve, 50.0)  # 20 s, and 60 s
    assert not is_steep(curve, 48.0)  # nobody comes to 47 %
    assert not is_steep(curve, 65.0)  # nobody has seen it pass
    assert steep_target([curve]) == 55
    later = points((10, 62.0), (20, 57.0), (30, 56.0))
    assert steep_target([later]) == 60  # 14 s, and 16 s
    assert steep_target([curve, later]) == 60
    assert steep_target([curve, points((10, 54.0), (20, 40.0))]) is None


def test_an_error_at_a_time_is_on_the_line_between_its_looks():
    ma = points((10, 60.0), (20, 50.0), (30, 46.0), (40, 44.0))
    assert error_at(ma, 25) == 48
    assert error_at(ma, 40) == 44
    assert error_at(ma, 9) is None
    assert error_at(ma, 41) is None


MA = points((10, 60.0), (20, 50.0), (30, 46.0), (40, 44.0))
FLAT = points((4, 60.0), (10, 44.5), (40, 44.0))  # 45 % before 25 % of its time


def test_a_figure_has_a_value_for_each_seed():
    read = Readings()
    fast = points((5, 62.0), (10, 50.0), (20, 44.0), (40, 40.0))
    slow = points((10, 61.0), (30, 50.0), (40, 42.0))
    read.compare("ec_g", [fast, slow], [MA, MA])
    values = {figure["name"]: figure["values"] for figure in read.figures}
    assert values["speed/ec_g"] == pytest.approx([40 / 20, 40 / 37.5])
    # MA-DNN_G has 45 % at 35 s and 44 % at 40 s, and nobody comes to 39 %.
    assert values["steep_target_pct/ec_g"] == [45]
    assert values["times_at_target/ec_g"] == pytest.approx([35 / (55 / 3), 35 / 36.25])
    assert values["points_better_at_50_pct/ec_g"] == pytest.approx([50 - 44, 50 - 55.5])
    assert values["points_better_at_100_pct/ec_g"] == pytest.approx([4, 2])
    assert values["points_better_at_25_pct/ec_g"] == pytest.approx([60 - 50, 60 - 61])
    assert read.undefined == {}


def test_what_is_undefined_for_one_seed_is_said_with_its_reason():
    read = Readings()
    read.compare("ec_g", [MA, MA], [MA, FLAT])
    read.compare_budgets("ec_g", [MA], [points((10, 60.0), (20, 50.0), (40, 44.0))])
    names = [figure["name"] for figure in read.figures]
    assert "speed/ec_g" not in names
    assert "budget_ratio/ec_g" in names
    why = "in 1 of 2 seeds MA-DNN_G is within a point of its best after 25% of its time"
    assert read.undefined["speed/ec_g"] == why
    summary = report("ec_dnn", read.figures)
    summary["undefined"] = read.undefined
    (line,) = [s for s in printed(summary).splitlines() if s.startswith("speed/ec_g")]
    assert "undefined" in line
    assert line.rstrip().endswith(why)
