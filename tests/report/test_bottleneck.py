"""Which side a served training waits for, from counts of both sides."""

import pytest

from kdlab.report.bottleneck import bottleneck_of, of_result


def counted(starved_s=30.0, **waits):
    return {"starved_s": starved_s, "served_s": 100.0, **waits}


@pytest.mark.parametrize(
    ("waits", "side"),
    [
        # A busy teacher: requests stand in its queue; the wire takes what it always takes.
        ({"queued_s": 70.0, "computed_s": 20.0, "wire_s": 10.0}, "teachers"),
        # A slow wire: they are not there yet, and nothing stands before the teacher.
        ({"queued_s": 5.0, "computed_s": 20.0, "wire_s": 75.0}, "wire"),
        # Its device waits for images, and so does what stands behind.
        ({"queued_s": 50.0, "views_s": 30.0, "computed_s": 10.0, "wire_s": 5.0}, "views"),
    ],
)
def test_requests_gather_before_the_slow_side(waits, side):
    bottleneck = of_result(counted(**waits))
    assert bottleneck.side == side
    assert bottleneck.starved == pytest.approx(0.3)
    assert sum(bottleneck.waits.values()) == pytest.approx(1.0)
    assert "the student waits 30% of its time" in bottleneck.sentence()


def test_a_student_that_hardly_waits_is_the_slow_side_wherever_answers_were():
    bottleneck = of_result(counted(starved_s=4.0, wire_s=50.0, computed_s=1.0))
    assert bottleneck.side == "student"
    assert "as it should be: it waits 4% of its time" in bottleneck.sentence()


def test_a_stretch_of_time_has_a_side_of_its_own():
    before = counted(starved_s=50.0, queued_s=100.0, computed_s=10.0)
    after = counted(starved_s=58.0, queued_s=100.0, computed_s=11.0, wire_s=9.0)
    bottleneck = bottleneck_of(10.0, after, before)
    assert (bottleneck.side, bottleneck.starved) == ("wire", pytest.approx(0.8))
    assert bottleneck.waits["queued_s"] == 0


def test_nothing_is_said_where_nobody_was_asked():
    assert of_result({}) is None
    assert of_result(counted()) is None
    later = counted(starved_s=1.0, wire_s=1.0)  # a reader that was started again
    assert bottleneck_of(5.0, later, counted(queued_s=50.0)) is None
    assert bottleneck_of(0.0, counted(wire_s=1.0), {}) is None
