"""The planner against the paper's exhaustive search, on random profiles."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts
from kdlab.papers.pipe_bd.hybrid_plan import (
    candidates,
    count,
    dynamic,
    exhaustive,
    relaying,
)
from kdlab.papers.pipe_bd.layerwise import packed

SECONDS = st.floats(1e-4, 1.0)
BATCH = 24
ROWS = (1, 4, 12, 24)


@st.composite
def blocks(draw, count):
    found = []
    for _ in range(count):
        base, share = draw(SECONDS), draw(st.floats(0.1, 3.0))
        floor = draw(st.floats(0.0, 0.5))  # what small batches cost all the same
        teacher = {r: base * (floor + (1 - floor) * r / BATCH) for r in ROWS}
        found.append(
            Block(
                teacher_s=teacher,
                student_s={r: share * s for r, s in teacher.items()},
                output_bytes=draw(st.floats(0, 1e6)),
                gradient_bytes=draw(st.floats(0, 1e6)),
                fixed_bytes=draw(st.floats(0, 10)),
                row_bytes=draw(st.floats(0, 1)),
            )
        )
    return found


@st.composite
def profiles(draw, most_blocks=8, most_devices=6):
    number = draw(st.integers(1, most_blocks))
    devices = draw(st.integers(1, most_devices))
    types = {"a": draw(blocks(number))}
    if draw(st.booleans()):
        slow = draw(st.floats(0.3, 3.0))
        types["b"] = [
            Block(
                teacher_s={r: s * slow for r, s in b.teacher_s.items()},
                student_s={r: s * slow for r, s in b.student_s.items()},
                output_bytes=b.output_bytes,
                gradient_bytes=b.gradient_bytes,
                fixed_bytes=b.fixed_bytes,
                row_bytes=b.row_bytes,
            )
            for b in types["a"]
        ]
    memory = draw(
        st.none() | st.lists(st.floats(5, 200), min_size=devices, max_size=devices)
    )
    return Profile(
        types=types,
        devices=[draw(st.sampled_from(sorted(types))) for _ in range(devices)],
        link=DeviceLink(
            bytes_per_s=draw(st.sampled_from([1e6, 1e8, inf])),
            latency_s=draw(st.sampled_from([0.0, 1e-3])),
            overlap=draw(st.sampled_from([0.0, 0.5, 1.0])),
        ),
        load_s=draw(st.sampled_from([0.0, 0.1])),
        memory_bytes=memory,
    )


@settings(max_examples=examples(400), deadline=None)
@given(profiles())
def test_the_dynamic_programme_finds_what_the_exhaustive_search_finds(profile):
    costs = StageCosts(profile, BATCH)
    by_all, by_less = exhaustive(costs), dynamic(costs)
    assert by_less.step_s == by_all.step_s
    if by_all.plan is None:
        assert by_less.plan is None
        return
    for plan in (by_all.plan, by_less.plan):
        assert costs.step_s(plan) == pytest.approx(by_all.step_s)
        assert plan.devices == tuple(range(len(profile.devices)))
        assert plan.blocks == range(profile.blocks)


@settings(max_examples=examples(100), deadline=None)
@given(profiles())
def test_teacher_relaying_is_the_best_of_its_kind(profile):
    costs = StageCosts(profile, BATCH)
    devices = len(profile.devices)
    widths_of_one = [
        exhaustive_of(costs, cuts, splits)
        for cuts, splits in candidates(costs.blocks, devices)
        if len(splits) == devices
    ]
    assert relaying(costs).step_s == min(widths_of_one, default=inf)
    assert relaying(costs).step_s >= dynamic(costs).step_s


def exhaustive_of(costs, cuts, splits):
    slowest = 0.0
    for first, stop, start, end in zip(
        [0, *cuts], cuts, [0, *splits], splits, strict=False
    ):
        group = costs.group(start, end)
        if not costs.fits(first, stop, group):
            return inf
        slowest = max(slowest, costs.seconds(first, stop, group))
    return slowest


@pytest.mark.parametrize(
    ("blocks", "devices", "plans"), [(6, 4, 56), (10, 8, 11440), (10, 10, 48620), (1, 5, 1)]
)
def test_the_number_of_plans(blocks, devices, plans):
    """56 for the authors' six blocks and four devices, as their code enumerates them."""
    assert count(blocks, devices) == plans
    if plans < 20_000:
        assert sum(1 for _ in candidates(blocks, devices)) == plans


def even(teacher, student, rows=(64, 128, 256)):
    return Block(
        teacher_s={r: teacher * r / 256 for r in rows},
        student_s={r: student * r / 256 for r in rows},
    )


def test_a_heavy_first_block_is_shared_as_in_figure_3d():
    """Section VII-A: where block 0 dominates, AHD helps and relaying alone does not."""
    blocks = [even(1.0, 2.0), *[even(0.1, 0.2) for _ in range(5)]]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 4), 256)
    found, relayed = exhaustive(costs), relaying(costs)
    assert relayed.step_s == pytest.approx(3.0)
    assert found.step_s == pytest.approx(4.5 / 4)
    assert len(found.plan.stages[0].devices) >= 3


def test_rows_of_unlike_devices_follow_their_speed():
    fast, slow = even(0.1, 0.2), even(0.2, 0.4)
    profile = Profile(types={"fast": [fast], "slow": [slow]}, devices=["fast", "slow"])
    (stage,) = dynamic(StageCosts(profile, 256)).plan.stages
    assert stage.rows == (171, 85)


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not():
    blocks = [
        Block(teacher_s={8: 1.0}, student_s={8: 1.0}, fixed_bytes=6.0) for _ in range(4)
    ]
    profile = Profile(types={"a": blocks}, devices=["a"] * 2, memory_bytes=[6.0, 18.0])
    found = dynamic(StageCosts(profile, 8))
    assert [s.stop for s in found.plan.stages] == [1, 4]
    too_small = Profile(types={"a": blocks}, devices=["a"] * 2, memory_bytes=[5.0, 9.0])
    assert dynamic(StageCosts(too_small, 8)).plan is None


def test_without_decoupling_students_wait_for_the_relay():
    """Fig. 3b: with a barrier the last device's teacher starts after all before it."""
    from dataclasses import replace

    blocks = [even(1.0, 2.0) for _ in range(3)]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 3), 256)
    plan = relaying(costs).plan
    assert costs.step_s(plan) == pytest.approx(3.0)
    assert costs.step_s(replace(plan, decoupled=False)) == pytest.approx(5.0)


def test_the_baselines_and_the_ideal():
    blocks = [even(1.0, 2.0) for _ in range(4)]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 2), 256)
    assert costs.ideal_s() == pytest.approx(12.0 / 2)
    # Block k runs k + 1 teachers and one student, all on half the rows.
    assert costs.data_parallel_s() == pytest.approx((1 + 2 + 3 + 4 + 4 * 2) / 2)
    packing = packed(4, 2, costs.task_s)  # 6, 5, 4, 3
    assert packing.seconds == pytest.approx((6 + 3, 5 + 4))
    assert packing.tasks == ((3, 0), (2, 1))
