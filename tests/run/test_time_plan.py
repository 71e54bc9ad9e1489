"""Plans fill the time that there is, but never have too few epochs to learn."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.run.time_plan import TimedWork, time_plan

WORK = TimedWork(
    images=2400, trained=600, asked=60, taught=20, teacher="probe", cached=True
)


def by_hand(work, plan):
    """Compute the seconds again: two trainings, the teacher's answers, and the teacher."""
    answers = work.images * (plan.views if work.cached else plan.epochs) / work.asked
    teacher = work.images * plan.teacher_epochs / work.taught
    if work.teacher == "probe":
        teacher = work.images / work.asked + 10
    return 2 * work.images * plan.epochs / work.trained + answers + teacher


works = st.builds(
    TimedWork,
    images=st.integers(2, 100_000),
    trained=st.floats(1, 1e5),
    asked=st.floats(1, 1e5),
    taught=st.floats(1, 1e5),
    teacher=st.sampled_from(["probe", "scratch", "tuned", "ready"]),
    tuned=st.booleans(),
    cached=st.booleans(),
)


@given(works, st.floats(1, 1e5))
def test_it_fits_or_it_is_the_least(work, seconds):
    plan = time_plan(work, seconds)
    assert plan.seconds == pytest.approx(by_hand(work, plan))
    assert work.least <= plan.epochs <= work.most
    trains = work.teacher in ("scratch", "tuned")
    least = {"scratch": 20, "tuned": 5}.get(work.teacher, 0)
    assert plan.teacher_epochs >= least
    assert bool(plan.teacher_epochs) == trains
    if plan.seconds > seconds * (1 + 1e-9):
        assert plan.epochs == work.least or trains
        if trains:
            assert plan.teacher_epochs == least
    if work.cached:
        assert 2 <= plan.views <= plan.epochs


@given(works, st.floats(1, 1e4))
def test_more_time_is_more_epochs(work, seconds):
    assert time_plan(work, 2 * seconds).epochs >= time_plan(work, seconds).epochs


@pytest.mark.parametrize(
    ("images", "tuned", "least"),
    [(320, False, 120), (2400, False, 16), (100_000, False, 15), (320, True, 5)],
)
def test_floors(images, tuned, least):
    """The least is 15 epochs, and with few photos the epochs of 600 steps."""
    assert replace(WORK, images=images, tuned=tuned).least == least


def test_five_minutes_of_two_thousand_photos():
    plan = time_plan(WORK, 300)
    assert (plan.epochs, plan.views) == (21, 2)
    assert plan.seconds == pytest.approx(2 * 2400 * 21 / 600 + 2 * 40 + 40 + 10)


def test_few_photos_are_answered_in_as_many_views_as_time_allows():
    """A student learns views by heart that it sees too often: two epochs a view, or fewer."""
    few = replace(WORK, images=320, trained=1000, asked=140)
    plan = time_plan(few, 255)
    assert plan.views == plan.epochs // 2
    assert (
        time_plan(few, 60).seconds > 60
    )  # with fewer views it would fit, and teach nothing
    most = time_plan(few, 3600)
    assert (most.epochs, most.views) == (300, 300)
