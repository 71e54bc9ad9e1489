"""When a pool computes the teacher's first blocks, and when it does not pay."""

import dataclasses
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab import messages
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan, NoPlan, programme
from kdlab.papers.pipe_bd.served_prefix import PoolSupply, served_profile, with_supply
from kdlab.papers.pipe_bd.stages import pipeline


def blocks(teacher, student, **rest):
    return [
        Block(teacher_s={8: t}, student_s={8: s}, **rest)
        for t, s in zip(teacher, student, strict=True)
    ]


def costs(teacher, student, devices=2, **rest):
    profile = Profile(types={"any": blocks(teacher, student)}, devices=("any",) * devices)
    return StageCosts(dataclasses.replace(profile, **rest), 8)


HEAVY = ([4.0, 4.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0])


def test_a_fast_pool_pays_and_the_blocks_are_shared_anew():
    plain = programme("ahd", costs(*HEAVY))
    found = with_supply("ahd", costs(*HEAVY), PoolSupply(2, rows_per_s=80.0, take_s=0.0))
    assert found.served == 2
    assert found.predicted_s < plain.predicted_s
    assert "pays" in found.why
    assert found.plans[0].blocks == range(4)
    assert found.plans[0].stages[0].stop >= 2
    assert messages.typed(ExecutionPlan, messages.plain(found)) == found


def test_a_slow_pool_sets_the_pace_and_does_not_pay():
    found = with_supply("ahd", costs(*HEAVY), PoolSupply(2, rows_per_s=1.0, take_s=0.0))
    assert found.served == 0
    assert found.plans == programme("ahd", costs(*HEAVY)).plans
    assert "does not pay" in found.why
    assert "delivers 1 rows/s" in found.why


def test_taking_over_may_cost_more_than_computing():
    found = with_supply("ahd", costs(*HEAVY), PoolSupply(2, rows_per_s=1e9, take_s=9.0))
    assert found.served == 0


def test_always_means_always():
    supply = PoolSupply(2, rows_per_s=1.0, take_s=0.0)
    found = with_supply("ahd", costs(*HEAVY), supply, always=True)
    assert found.served == 2
    assert found.predicted_s == 8.0
    assert "as told" in found.why


def test_too_few_blocks_are_left_to_relay():
    supply = PoolSupply(3, rows_per_s=1e9, take_s=0.0)
    wide = costs(*HEAVY, devices=3)
    assert "no teacher block served" in with_supply("tr", wide, supply).why
    with pytest.raises(NoPlan, match="2 blocks for 3 devices"):
        with_supply("tr", wide, supply, always=True)


seconds = st.floats(0.01, 5.0)


@given(st.data(), st.integers(2, 6), st.integers(1, 4))
def test_it_is_the_best_of_all_plans_with_the_prefix_in_the_first_stage(
    data, count, devices
):
    both = [data.draw(st.lists(seconds, min_size=count, max_size=count)) for _ in range(2)]
    link = DeviceLink(bytes_per_s=100.0, overlap=data.draw(st.sampled_from([0.0, 1.0])))
    made = blocks(*both, output_bytes=3.0, gradient_bytes=2.0)
    profile = Profile(types={"any": made}, devices=("any",) * devices, link=link)
    whole = StageCosts(profile, 8)
    supply = PoolSupply(data.draw(st.integers(1, count)), 1e9, data.draw(seconds))
    found = with_supply("ahd", whole, supply, always=True)
    served = StageCosts(served_profile(profile, supply), 8)
    assert found.predicted_s == pytest.approx(served.step_s(found.plans[0]))
    every = [
        served.step_s(pipeline(8, [*cuts, count], widths))
        for stages in range(1, min(count, devices) + 1)
        for cuts in combinations(range(1, count), stages - 1)
        for widths in product(range(1, devices + 1), repeat=stages)
        if [*cuts, count][0] >= supply.blocks and sum(widths) == devices
    ]
    assert found.predicted_s == pytest.approx(min(every))
