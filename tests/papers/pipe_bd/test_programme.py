"""The work of every device, by each method, and what is refused."""

import json

import pytest

from kdlab.codec import from_builtins, to_builtins
from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import (
    ExecutionPlan,
    NoPlan,
    memory_bytes,
    predicted_s,
    programme,
)


def costs(blocks=4, devices=2, batch=8, memory=None, factor=1.0):
    rows = range(1, batch + 1)
    table = [
        Block(
            teacher_s={r: factor * 0.001 * (k + 1) * r for r in rows},
            student_s={r: factor * 0.002 * (k + 1) * r for r in rows},
            fixed_bytes=1000.0,
            row_bytes=100.0,
        )
        for k in range(blocks)
    ]
    limits = None if memory is None else (memory,) * devices
    profile = Profile(types={"cpu": table}, devices=("cpu",) * devices, memory_bytes=limits)
    return StageCosts(profile, batch)


@pytest.mark.parametrize("name", ["tr", "ahd", "ir", "dp", "ls"])
def test_every_block_is_trained_once_on_every_row(name):
    chosen = programme(name, costs())
    trained = [b for plan in chosen.plans for stage in plan.stages for b in stage.blocks]
    assert sorted(trained) == [0, 1, 2, 3]
    assert all(sum(s.rows) == 8 for plan in chosen.plans for s in plan.stages)
    assert chosen.blocks == 4
    for block in range(4):
        owner = chosen.owner(block)
        assert any(block in plan.blocks for plan in chosen.plans_of(owner))
    text = json.dumps(to_builtins(chosen))
    assert from_builtins(ExecutionPlan, json.loads(text)) == chosen


def test_the_hybrid_plan_is_at_least_as_good_as_all_others():
    cost = costs(blocks=5, devices=3, batch=12)
    best = programme("ahd", cost).predicted_s
    for name in ("tr", "ir", "dp", "ls"):
        assert best <= programme(name, cost).predicted_s + 1e-12
    assert best >= cost.ideal_s() - 1e-12


def test_without_decoupling_a_step_waits():
    cost = costs(blocks=2)
    waiting = programme("tr", cost, decoupled=False)
    assert waiting.predicted_s > programme("tr", cost).predicted_s


@pytest.mark.parametrize(
    ("name", "sizes", "why"),
    [
        ("tr", {"blocks": 2, "devices": 3}, "2 blocks for 3 devices"),
        ("ls", {"blocks": 2, "devices": 3}, "leave 1 of 3 devices without any"),
        ("ir", {"devices": 9}, "8 rows are fewer than 9 devices"),
        ("dp", {"devices": 9}, "8 rows are fewer than 9 devices"),
        ("ir", {"memory": 4500.0}, "needs 5.6e-06 GB on device 0, which has 4.5e-06"),
        ("ahd", {"memory": 900.0}, "No plan of 4 blocks and 8 rows fits"),
    ],
)
def test_what_cannot_be_is_said_with_numbers(name, sizes, why):
    with pytest.raises(NoPlan, match=why):
        programme(name, costs(**sizes))


def test_a_device_without_rows_is_left_idle():
    chosen = programme("ahd", costs(blocks=1, devices=9))
    assert chosen.idle(9) == [8]
    assert (
        "device 8 idle: no plan was found that uses more devices and is as fast"
        in chosen.why
    )


def test_memory_decides_between_plans():
    """All on each device is fastest here and does not fit; so the search takes stages."""
    free, tight = costs(blocks=2), costs(blocks=2, memory=2200.0)
    assert len(programme("ahd", tight).plans[0].stages) == 2
    assert max(memory_bytes(programme("ahd", tight), tight)) <= 2200
    assert max(memory_bytes(programme("ir", free), free)) == 2 * 1000 + 4 * 2 * 100
    # A baseline's task also holds the teacher's blocks before it.
    assert memory_bytes(programme("dp", free), free)[0] >= 2000


@pytest.mark.parametrize("name", ["tr", "ahd", "ir", "dp", "ls"])
def test_what_is_carried_out_can_be_predicted_by_another_profile(name):
    now = costs()
    chosen = programme(name, now)
    assert predicted_s(chosen, now) == pytest.approx(chosen.predicted_s)
    twice = costs(factor=2.0)
    assert predicted_s(chosen, twice) == pytest.approx(2 * chosen.predicted_s)
