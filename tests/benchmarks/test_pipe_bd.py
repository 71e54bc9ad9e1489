"""Variants, slices and rounds that the benchmark of Pipe-BD times."""

import pytest
import torch

from benchmarks import pipe_bd
from benchmarks.block_rank import (
    VARIANTS,
    SlicesOfRanks,
    _goes_on,
    _Round,
    plan_lines,
    plan_of,
    quiet_rounds,
    same_plan,
)
from benchmarks.block_workloads import workload
from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.stages import LEAD


def programmes(*work):
    """Programmes of all variants, for two equal devices and blocks of so much work."""
    rows = (16, 32)
    blocks = [
        Block(
            teacher_s={r: w * r for r in rows},
            student_s={r: 2 * w * r for r in rows},
        )
        for w in work
    ]
    costs = StageCosts(Profile(types={"cpu": blocks}, devices=["cpu"] * 2), 32)
    return {name: plan_of(name, costs) for name in VARIANTS}


def test_variants_of_the_same_plan_are_timed_once():
    timed = same_plan(programmes(1.0, 1.0))
    assert timed["tr_dpu_ahd"] == "tr_dpu"
    # A variant with a barrier has another plan, and so has the ideal.
    assert all(timed[name] == name for name in VARIANTS if name != "tr_dpu_ahd")


def test_variants_of_other_plans_are_timed_each():
    """A first block that has most of the work is shared."""
    every = programmes(9.0, 1.0)
    timed = same_plan(every)
    assert len(every["tr_dpu_ahd"].plans[0].stages[0].devices) == 2
    assert timed["tr_dpu"] == "tr_dpu"
    assert timed["tr_dpu_ahd"] in ("tr_dpu_ahd", "tr_ir")


def test_plans_are_told_in_words():
    every = programmes(1.0, 1.0)
    lines = list(plan_lines(every, same_plan(every)))
    assert lines == [
        "tr: block 0 on 0; block 1 on 1",
        "tr_dpu: block 0 on 0; block 1 on 1",
        "tr_dpu_ahd: the plan of tr_dpu, timed once: block 0 on 0; block 1 on 1",
        "tr_ir: blocks 0 to 1 on 0, 1",
    ]


@pytest.mark.parametrize("name", ["compression", "nas"])
def test_a_slice_is_as_long_as_the_lead_that_its_config_ships(name):
    lead = workload(name).lead
    assert (name == "nas") == (lead > LEAD)
    assert pipe_bd.SLICES[name] >= lead


def test_workloads_are_cut_into_the_blocks_of_the_paper():
    names = ("compression", "nas", "stages")
    cut = [workload(name).cutting(torch.device("cpu")) for name in names]
    assert [len(cutting.pairs) for cutting in cut] == [13, 6, 2]


def rounds(*others):
    """Rounds in which other processes used so many cores."""
    return [_Round({"tr": float(k)}, {}, 1.0, had) for k, had in enumerate(others)]


def test_rounds_that_others_disturbed_do_not_count():
    """Only the cores that others used decide, not the figures; spare cores may be used."""
    assert quiet_rounds(every := rounds(0.02, 0.9, 0.05, 0.3), 0) == [every[0], every[2]]
    assert quiet_rounds(every, 1) == every
    assert quiet_rounds(every := rounds(0.8, 0.9, 0.3), 0) == [every[2], every[0]]
    assert quiet_rounds(every := rounds(0.8), 0) == every


@pytest.mark.parametrize(
    ("others", "spent_s", "goes_on"),
    [
        ((), 0.0, True),
        ((0.0,), 90.0, True),  # two are made, however long they take
        ((0.0, 0.0), 40.0, True),
        ((0.0, 0.0), 41.0, False),  # a third would end behind 60 s
        ((0.0, 0.0, 0.0), 1.0, False),
        ((0.0, 0.0, 0.5), 1.0, True),
        ((0.5,) * 6, 1.0, False),  # it will not be quiet
    ],
)
def test_rounds_go_on_until_enough_are_quiet_or_their_time_is_over(
    others, spent_s, goes_on
):
    job = SlicesOfRanks(
        workload="stages", world=2, device="cpu", batch=8, profile_s=1.0, rounds=3, steps=2,
        budget_s=60.0,
    )  # fmt: skip
    assert _goes_on(job, rounds(*others), spent_s, 0) == goes_on
