"""The time of meetings is the time that devices took beyond their own work."""

import pytest

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import programme
from kdlab.papers.pipe_bd.meetings import DeviceTimes, device_took, sharing_of
from kdlab.papers.pipe_bd.relay import Span


def block(teacher, student, **more):
    rows = {8: 1.0, 4: 0.5, 1: 1 / 8}
    return Block(
        teacher_s={r: teacher * s for r, s in rows.items()},
        student_s={r: student * s for r, s in rows.items()},
        **more,
    )


def profile(*times, norms=0):
    blocks = [block(*t, gradient_bytes=8.0, norms=norms) for t in times]
    link = DeviceLink(bytes_per_s=1e9, latency_s=1e-4)
    return Profile(types={"a": blocks}, devices=["a", "a"], link=link)


def took_of(block_profile, factor, *, within=False):
    """(stage, costs, took) of all blocks on both devices; meetings take `factor` times as long."""
    costs = StageCosts(block_profile, 8)
    (plan,) = programme("ir", costs).plans
    (stage,) = plan.stages
    cost = costs.stage_cost(stage)
    met = factor * cost.all_reduce
    took = [
        DeviceTimes(d, cost.teacher, cost.student + within * met, (not within) * met)
        for d in stage.devices
    ]
    return stage, costs, took


@pytest.mark.parametrize("within", [False, True], ids=["behind", "in the student"])
@pytest.mark.parametrize("factor", [1.0, 1000.0])
def test_meetings_are_held_against_what_the_links_say(factor, within):
    stage, costs, took = took_of(profile((1, 2), (1, 2.4), norms=4), factor, within=within)
    assert sharing_of(stage, costs, took) == pytest.approx(factor)


def test_whoever_comes_last_waits_least():
    stage, costs, (first, second) = took_of(profile((1, 2), norms=4), 10.0)
    early = DeviceTimes(1, second.teacher, second.student, second.all_reduce + 5.0)
    assert sharing_of(stage, costs, [first, early]) == pytest.approx(10.0)


def test_a_device_alone_meets_nobody():
    _, costs, took = took_of(profile((1, 2), (1, 2)), 1.0)
    (plan,) = programme("tr", costs).plans
    assert sharing_of(plan.stages[0], costs, took) is None


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
    assert device_took(1, spans) == DeviceTimes(1, 2.0, 1.0, 0.5)
