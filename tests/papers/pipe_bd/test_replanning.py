"""A plan is given up for another one by what its steps took, and only for a better one."""

import pytest

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import programme
from kdlab.papers.pipe_bd.relay import Span
from kdlab.papers.pipe_bd.replanning import DeviceTook, Replanning, device_took


def block(teacher, student, **more):
    rows = {8: 1.0, 4: 0.5, 1: 1 / 8}
    return Block(
        teacher_s={r: teacher * s for r, s in rows.items()},
        student_s={r: student * s for r, s in rows.items()},
        **more,
    )


def profile(*times, norms=0):
    made = [block(*t, gradient_bytes=8.0, norms=norms) for t in times]
    link = DeviceLink(bytes_per_s=1e9, latency_s=1e-4)
    return Profile(types={"a": made}, devices=["a", "a"], link=link)


def begun(own):
    costs = StageCosts(own, 8)
    return Replanning(own, decoupled=True), costs, programme("ahd", costs)


def as_predicted(made, costs, *, teacher=1.0, student=1.0, sharing=1.0):
    """What devices take when the profile is off by these factors."""
    took = []
    for stage in made.plans[0].stages:
        cost = costs.of_stage(stage)
        for device in stage.devices:
            took.append(
                DeviceTook(
                    device,
                    teacher * cost.teacher,
                    student * cost.student,
                    sharing * cost.all_reduce,
                )
            )
    return took, max(t.teacher + t.student + t.all_reduce for t in took)


def test_a_plan_that_does_what_was_predicted_stays():
    again, costs, made = begun(profile((1, 2), (1, 2), (1, 2), (1, 2)))
    assert again.after_epoch(made, costs, *as_predicted(made, costs)) is None
    # Slower all over, as when somebody else uses the machine: no plan is better for that.
    slow = as_predicted(made, costs, teacher=1.7, student=1.7)
    assert again.after_epoch(made, costs, *slow) is None


def test_meetings_that_cost_more_than_predicted_are_given_up():
    """All on both devices looks best; by what its norms take relaying is better."""
    again, costs, made = begun(profile((1, 2), (1, 2.4), norms=4))
    assert [s.devices for s in made.plans[0].stages] == [(0, 1)]
    took, step_s = as_predicted(made, costs, sharing=1000.0)
    other, now = again.after_epoch(made, costs, took, step_s)
    assert [s.devices for s in other.plans[0].stages] == [(0,), (1,)]
    assert other.predicted_s == pytest.approx(3.4)
    assert now.profile.sharing == pytest.approx(1000.0)
    assert "were predicted" in other.why
    # It does what is expected of it, so it stays.
    assert again.after_epoch(other, now, *as_predicted(other, now)) is None


def test_norms_that_meet_within_the_student_are_no_work_of_its_blocks():
    again, costs, made = begun(profile((1, 2), (1, 2.4), norms=4))
    took, step_s = as_predicted(made, costs, sharing=1000.0)
    moved = [DeviceTook(t.device, t.teacher, t.student + t.all_reduce, 0.0) for t in took]
    other, now = again.after_epoch(made, costs, moved, step_s)
    assert len(other.plans[0].stages) == 2
    assert now.profile.types["a"][0].student_s[8] == pytest.approx(2.0)


def test_a_block_that_takes_longer_gets_less_company():
    again, costs, made = begun(profile((1, 2), (1, 2), (1, 2), (1, 2)))
    (plan,) = made.plans
    if len(plan.stages) != 2:
        pytest.fail("two stages of two blocks are the best plan without links")
    took, _ = as_predicted(made, costs)
    slow = [DeviceTook(0, 4 * took[0].teacher, 4 * took[0].student, 0.0), took[1]]
    other, now = again.after_epoch(made, costs, slow, slow[0].teacher + slow[0].student)
    assert now.profile.types["a"][0].teacher_s[8] == pytest.approx(4.0)
    assert now.profile.types["a"][3].teacher_s[8] == pytest.approx(1.0)
    assert other.predicted_s < 0.8 * (slow[0].teacher + slow[0].student)


def test_a_plan_that_was_tried_counts_as_what_it_took():
    """The better one of those that were tried is gone back to, and stays."""
    again, costs, made = begun(profile((1, 2), (1, 2.4), norms=4))
    took, step_s = as_predicted(made, costs, sharing=1000.0)
    other, now = again.after_epoch(made, costs, took, step_s)
    slower, _ = as_predicted(other, now)
    back, by = again.after_epoch(other, now, slower, 2 * step_s)
    assert back.plans == made.plans
    assert back.predicted_s == step_s
    assert by is costs
    assert "in between took" in back.why
    assert again.after_epoch(back, costs, took, step_s) is None
    # A way back is no change: three others may still be tried.
    assert again.changes == 1


def test_what_every_plan_waits_for_is_no_reason_to_change():
    """Steps take a tenth longer than their parts: so would those of any other plan."""
    again, costs, made = begun(profile((1, 2), (1, 2), (1, 2), (1, 2.02)))
    took, step_s = as_predicted(made, costs)
    assert again.after_epoch(made, costs, took, 1.1 * step_s) is None


def test_it_changes_a_few_times_at_most():
    again, costs, made = begun(profile((1, 2), (1, 2.4), norms=4))
    again.changes = 3
    took, step_s = as_predicted(made, costs, sharing=1000.0)
    assert again.after_epoch(made, costs, took, step_s) is None


def test_what_a_device_took_is_the_mean_over_its_steps():
    spans = [
        Span(1, "teacher", 4, 0.0, 1.0),
        Span(1, "student", 4, 1.0, 1.5),
        Span(1, "backward", 4, 1.5, 2.5),
        Span(1, "update", 4, 3.5, 4.0),
        Span(1, "all_reduce", 4, 2.5, 3.5),
        Span(1, "teacher", 5, 4.0, 7.0),
        Span(1, "receive", 5, 7.0, 17.0),
    ]
    assert device_took(1, spans) == DeviceTook(1, 2.0, 1.0, 0.5)
