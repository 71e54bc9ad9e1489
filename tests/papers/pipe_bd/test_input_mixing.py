"""How many rows get the student's own inputs, and what that asks of a plan."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import programme
from kdlab.papers.pipe_bd.input_mixing import MixingSchedule
from kdlab.papers.pipe_bd.relay import SendOutput, StudentStep, instructions
from kdlab.papers.pipe_bd.stages import pipeline


def test_the_share_rises_in_a_line_after_its_beginning():
    schedule = MixingSchedule(most=0.6, after=0.25)
    shares = [schedule.share(step, 100) for step in range(100)]
    assert shares[:25] == [0.0] * 25
    assert shares[-1] == pytest.approx(0.6)
    rises = [b - a for a, b in pairwise(shares[25:])]
    assert rises == pytest.approx([0.6 / 75] * len(rises))
    assert MixingSchedule(most=0.5, after=0.0).share(0, 10) == pytest.approx(0.05)


def test_what_the_student_puts_out_is_there_before_it_is_sent():
    plan = pipeline(8, [1, 2, 3], [1, 1, 1])
    for mixes in (False, True):
        for device in (0, 1):
            own = list(instructions(replace(plan, mixes=mixes), device, 3))
            for step in range(3):
                sent = own.index(
                    next(i for i in own if type(i) is SendOutput and i.step == step)
                )
                done = own.index(
                    next(i for i in own if type(i) is StudentStep and i.step == step)
                )
                assert (sent > done) == mixes


def test_twice_as_much_travels_and_plans_know_it():
    times = {8: 1.0}
    blocks = [
        Block(teacher_s=times, student_s=times, output_bytes=size, gradient_bytes=1.0)
        for size in (1e3, 2e3, 4e3)
    ]
    profile = Profile(
        types={"gpu": blocks},
        devices=("gpu", "gpu"),
        link=DeviceLink(bytes_per_s=1e6, overlap=0.0),
    )
    plain, mixed = StageCosts(profile, 8), StageCosts(profile, 8, mixes=True)
    assert mixed.crossing == [2 * size for size in plain.crossing]
    assert mixed.of(profile).mixes
    (plan,) = programme("tr", mixed).plans
    assert plan.mixes
    assert plan.of_batch(6).mixes
    assert mixed.step_s(plan) > plain.step_s(plan)
    (plan,) = programme("ir", mixed).plans
    assert plan.mixes
    assert not programme("tr", plain).plans[0].mixes
