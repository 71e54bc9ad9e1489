"""The planner against a search of everything, with group, row and cost code of its own."""

import random
from math import inf

import pytest
from plan_costs import costs_of
from plan_oracle import KINDS_OF_TABLES, Everything, table
from tests_support import examples

from kdlab.papers.pipe_bd import hybrid_plan
from kdlab.papers.pipe_bd.block_cost import Block, DeviceLink, Profile, StageCosts, at
from kdlab.papers.pipe_bd.execution_plan import memory_bytes, programme
from kdlab.papers.pipe_bd.hybrid_plan import best_plan, count, relaying
from kdlab.papers.pipe_bd.layerwise import packed


def check_best(case, result, costs, *, decoupled, widest=None):
    """Check that it is the best plan of a table, says so, and can be carried out."""
    expected = Everything(case, decoupled=decoupled, widest=widest).best()
    if result.plan is None:
        assert expected == inf
        return
    assert result.step_s == pytest.approx(expected, rel=1e-9)
    assert result.bound_s == pytest.approx(expected, rel=1e-9)
    assert costs.step_s(result.plan) == pytest.approx(expected, rel=1e-9)
    assert result.plan.blocks == range(case.blocks)
    assert result.plan.decoupled == decoupled
    if case.memory is not None and widest is None:
        needed = memory_bytes(programme("ahd", costs, decoupled=decoupled), costs)
        assert all(n <= m * (1 + 1e-9) for n, m in zip(needed, case.memory, strict=True))


@pytest.mark.tiered
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
@pytest.mark.long
def test_no_plan_is_better_than_the_planned_one(kind, decoupled):
    """300 tables of each kind at night: floats of all sizes, ties, unlike devices, memory."""
    for seed in range(examples(300, ci=30)):
        case = table(seed, kind)
        costs = costs_of(case)
        check_best(case, best_plan(costs, decoupled=decoupled), costs, decoupled=decoupled)


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_few_tables_of_each_kind(decoupled):
    for kind in KINDS_OF_TABLES:
        case = table("few", kind, blocks=4, devices=4, batch=5)
        costs = costs_of(case)
        check_best(case, best_plan(costs, decoupled=decoupled), costs, decoupled=decoupled)


@pytest.mark.parametrize("decoupled", [True, False])
def test_teacher_relaying_is_the_best_of_its_kind(decoupled):
    for seed in range(examples(20, quick=2)):
        for kind in KINDS_OF_TABLES:
            case = table(seed, kind, blocks=5, devices=4)
            costs = costs_of(case)
            result = relaying(costs, decoupled=decoupled)
            check_best(case, result, costs, decoupled=decoupled, widest=1)


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_search_of_everything_is_one(decoupled):
    """Stage by stage from the end, it finds the same optimum as listing all plans."""
    for kind in KINDS_OF_TABLES:
        everything = Everything(table(1, kind, 3, 3, 4), decoupled=decoupled)
        assert everything.best() == pytest.approx(everything.one_by_one(), rel=1e-12)


@pytest.mark.tiered
@pytest.mark.parametrize("decoupled", [True, False])
def test_where_there_are_too_many_kinds_a_plan_comes_with_a_bound(monkeypatch, decoupled):
    """The exact search is switched off, and the oracle knows the true optimum."""
    monkeypatch.setattr(hybrid_plan, "_MOST_TURNS", 0)
    for seed in range(examples(100, ci=10, quick=1)):
        for kind in KINDS_OF_TABLES:
            case = table(f"bound {seed}", kind, blocks=5, devices=4)
            costs = costs_of(case)
            result = best_plan(costs, decoupled=decoupled)
            expected = Everything(case, decoupled=decoupled).best()
            assert result.bound_s <= expected * (1 + 1e-9), (seed, kind)
            assert result.step_s >= expected * (1 - 1e-9), (seed, kind)
            if result.plan is not None:
                assert costs.step_s(result.plan) == pytest.approx(result.step_s, rel=1e-9)


def test_a_plan_with_a_bound_says_so(monkeypatch):
    costs = many(6, 6, 2)
    exact = programme("ahd", costs)
    assert "best of all plans for 2 kinds of devices" in exact.why
    monkeypatch.setattr(hybrid_plan, "_MOST_TURNS", 0)
    plan = programme("ahd", costs)
    assert "the best that was found for 2 kinds of devices; no plan is faster" in plan.why
    assert plan.predicted_s >= exact.predicted_s


def many(blocks, devices, kinds):
    """Return costs where a slower kind of device is not equally slow at each block."""
    chance = random.Random(blocks)
    base_s = [chance.uniform(1.0, 10.0) for _ in range(blocks)]

    def block(seconds):
        times = {r: seconds * (0.1 + 0.9 * r / 256) for r in (1, 16, 64, 128, 256)}
        twice = {r: 2 * s for r, s in times.items()}
        return Block(
            teacher_s=times, student_s=twice, output_bytes=4e3, gradient_bytes=1e6, norms=1
        )

    types = {
        f"kind{k}": [block(s * (1 + 0.8 * k) * chance.uniform(0.8, 1.25)) for s in base_s]
        for k in range(kinds)
    }
    device_kinds = [f"kind{k * kinds // devices}" for k in range(devices)]
    link = DeviceLink(bytes_per_s=1e9, latency_s=1e-5)
    return StageCosts(Profile(types=types, devices=device_kinds, link=link), 256)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.long
def test_64_blocks_on_64_devices(kinds, decoupled):
    costs = many(64, 64, kinds)
    result = best_plan(costs, decoupled=decoupled)
    assert costs.step_s(result.plan) == pytest.approx(result.step_s)
    assert sorted(result.plan.devices) == list(range(64))
    assert result.looked_at < 500_000  # of 4 million stages and more
    assert result.bound_s <= result.step_s
    exact = kinds == 1 or decoupled
    assert (result.step_s == pytest.approx(result.bound_s)) == exact


@pytest.mark.parametrize(("devices", "kinds"), [(8, 8), (16, 3), (32, 3)])
@pytest.mark.long
def test_of_many_kinds_it_is_the_best_too(devices, kinds):
    costs = many(2 * devices, devices, kinds)
    result = best_plan(costs)
    assert result.step_s == pytest.approx(result.bound_s)
    assert costs.step_s(result.plan) == pytest.approx(result.step_s)


@pytest.mark.parametrize(
    ("devices", "kinds", "decoupled", "near"),
    [
        *((64, 4, True, 1.05), (48, 6, True, 1.05), (32, 8, True, 1.05)),
        *((64, 2, False, 1.05), (48, 3, False, 1.05), (32, 8, False, 1.09)),
    ],
)
@pytest.mark.long
def test_of_too_many_kinds_it_is_near_the_bound(devices, kinds, decoupled, near):
    """By prices, where all plans are too many to compare."""
    costs = many(devices, devices, kinds)
    result = best_plan(costs, decoupled=decoupled)
    assert result.bound_s <= result.step_s <= near * result.bound_s
    assert costs.step_s(result.plan) == pytest.approx(result.step_s)
    assert sorted(result.plan.devices) == list(range(devices))


@pytest.mark.parametrize(
    ("blocks", "devices", "plans"), [(6, 4, 56), (10, 8, 11440), (10, 10, 48620), (1, 5, 1)]
)
def test_the_number_of_plans(blocks, devices, plans):
    """56 for the authors' six blocks and four devices, as their code enumerates them."""
    assert count(blocks, devices) == plans


def even(teacher, student, rows=(64, 128, 256)):
    return Block(
        teacher_s={r: teacher * r / 256 for r in rows},
        student_s={r: student * r / 256 for r in rows},
    )


def test_a_heavy_first_block_is_shared_as_in_figure_3d():
    """Section VII-A: where block 0 dominates, AHD helps and relaying alone does not."""
    blocks = [even(1.0, 2.0), *[even(0.1, 0.2) for _ in range(5)]]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 4), 256)
    result, relayed = best_plan(costs), relaying(costs)
    assert relayed.step_s == pytest.approx(3.0)
    assert result.step_s == pytest.approx(4.5 / 4)
    assert len(result.plan.stages[0].devices) >= 3


def test_rows_of_unlike_devices_are_those_that_end_together():
    fast, slow = even(0.1, 0.2), even(0.2, 0.4)
    profile = Profile(types={"fast": [fast], "slow": [slow]}, devices=["slow", "fast"])
    (stage,) = best_plan(StageCosts(profile, 256)).plan.stages
    assert stage.devices == (0, 1)
    assert stage.rows == (85, 171)


def test_a_device_gets_the_blocks_that_it_is_good_at():
    """Whatever its number: the second device is ten times faster at the first block."""
    profile = Profile(
        types={"a": [even(9, 1), even(1, 0)], "b": [even(0.9, 0.1), even(9, 1)]},
        devices=["a", "b"],
    )
    result = best_plan(StageCosts(profile, 256), widest=1)
    assert [s.devices for s in result.plan.stages] == [(1,), (0,)]
    assert result.step_s == pytest.approx(1.0)


def test_a_device_that_would_only_hold_the_others_back_is_left_idle():
    """Section IV-C: the slowest device decides, so one is better left out, and is named."""
    fast, slow = even(0.1, 0.2), even(1.0, 2.0)
    profile = Profile(
        types={"fast": [fast], "slow": [slow]}, devices=["slow", "fast", "fast"]
    )
    link = DeviceLink(latency_s=0.02)
    costs = StageCosts(
        Profile(types=profile.types, devices=profile.devices, link=link), 256
    )
    plan = programme("ahd", costs)
    assert plan.plans[0].devices == (1, 2)
    assert plan.predicted_s == pytest.approx(0.15 + 2 * 0.02)
    assert plan.idle(3) == [0]
    assert (
        "device 0 idle: no plan was found that uses more devices and is as fast" in plan.why
    )
    everyone = programme("ir", costs)
    assert everyone.idle(3) == []
    assert everyone.predicted_s > plan.predicted_s


def test_nobody_is_left_idle_where_a_plan_of_all_is_as_fast():
    """The first block takes as long whatever the others do."""
    heavy = Block(teacher_s={1: 1.0, 256: 1.0}, student_s={1: 2.0, 256: 2.0})
    blocks = [heavy, *[even(0.1, 0.2) for _ in range(3)]]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 4), 256)
    for result in (best_plan(costs), relaying(costs)):
        assert result.step_s == pytest.approx(3.0)
        assert sorted(result.plan.devices) == [0, 1, 2, 3]


def test_memory_that_does_not_bind_makes_no_kinds():
    """Eight devices with as many amounts of free memory are searched as eight alike ones."""
    blocks = [
        Block(
            teacher_s={1: 0.2, 16: 1.0},
            student_s={1: 0.3, 16: 1.0 + k / 7},
            fixed_bytes=10.0,
            row_bytes=1.0,
        )
        for k in range(12)
    ]

    def best_within(memory):
        profile = Profile(types={"a": blocks}, devices=["a"] * 8, memory_bytes=memory)
        return best_plan(StageCosts(profile, 16))

    free = best_within(None)
    costs = StageCosts(Profile(types={"a": blocks}, devices=["a"] * 8), 16)
    needed = sorted(memory_bytes(programme("ahd", costs), costs), reverse=True)
    assert needed[0] > needed[-1]
    assert best_within([needed[0] + k for k in range(8)]) == free
    # Where each has just what some device needs, they change places.
    tight = best_within(needed[::-1])
    assert (tight.step_s, tight.looked_at) == (free.step_s, free.looked_at)
    assert best_within([0.99 * needed[0]] * 8).step_s > free.step_s


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not():
    blocks = [
        Block(teacher_s={8: 1.0}, student_s={8: 1.0}, fixed_bytes=6.0) for _ in range(4)
    ]
    profile = Profile(types={"a": blocks}, devices=["a"] * 2, memory_bytes=[6.0, 18.0])
    costs = StageCosts(profile, 8)
    result = best_plan(costs)
    assert sorted((s.stop - s.first, s.devices) for s in result.plan.stages) == [
        (1, (0,)),
        (3, (1,)),
    ]
    needed = memory_bytes(programme("ahd", costs), costs)
    assert needed == [6.0, 18.0]
    too_small = Profile(types={"a": blocks}, devices=["a"] * 2, memory_bytes=[5.0, 9.0])
    assert best_plan(StageCosts(too_small, 8)).plan is None


def test_without_decoupling_another_plan_may_be_the_best():
    """Fig. 3b: with a barrier the last device's teacher starts after all before it."""
    blocks = [even(1.0, 2.0) for _ in range(3)]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 3), 256)
    assert relaying(costs).step_s == pytest.approx(3.0)
    assert relaying(costs, decoupled=False).step_s == pytest.approx(5.0)
    waiting = best_plan(costs, decoupled=False)
    assert waiting.step_s == pytest.approx(3.0, rel=0.01)  # 86 of 256 rows are a third
    assert [s.devices for s in waiting.plan.stages] == [(0, 1, 2)]


def test_a_loader_counts_where_it_is_slower_than_the_computing():
    """Each process loads its own rows: three devices on the first block load three times faster."""
    blocks = [even(0.1, 0.2) for _ in range(2)]
    for overlap, expected in ((1.0, 10.0), (0.0, 10.6)):
        profile = Profile(
            types={"gpu": blocks}, devices=["gpu"], load_s=10.0, load_overlap=overlap
        )
        assert best_plan(StageCosts(profile, 256)).step_s == pytest.approx(expected)
    profile = Profile(
        types={"gpu": blocks}, devices=["gpu"] * 4, load_s=12.0, load_overlap=1.0
    )
    result = best_plan(StageCosts(profile, 256))
    assert result.step_s == pytest.approx(3.0)
    assert len(result.plan.stages[0].devices) == 4


def test_more_rows_never_take_less_time():
    noisy = {4: 1.0, 8: 3.0, 16: 2.0, 32: 5.0}
    seconds = [at(noisy, r) for r in range(1, 65)]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 1.0 / 4
    assert at({8: 1.0, 16: 3.0}, 1) == pytest.approx(1 / 8)
    assert at({8: 1.0, 16: 1.5}, 4) == pytest.approx(0.75)
    assert at({8: 1.0}, 16) == 2.0


def test_the_baselines_and_the_ideal():
    blocks = [even(1.0, 2.0) for _ in range(4)]
    costs = StageCosts(Profile(types={"gpu": blocks}, devices=["gpu"] * 2), 256)
    assert costs.ideal_s() == pytest.approx(12.0 / 2)
    # Block k runs k + 1 teachers and one student, all on half the rows.
    assert costs.data_parallel_s() == pytest.approx((1 + 2 + 3 + 4 + 4 * 2) / 2)
    # Whole tasks take 3, 4, 5 and 6; by themselves all blocks are alike.
    packing = packed(4, 2, costs.own_s, costs.task_s)
    assert packing.tasks == ((0, 2), (1, 3))
    assert packing.seconds == pytest.approx((3 + 5, 4 + 6))
