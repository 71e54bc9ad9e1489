"""The bound with a barrier against a search of everything, which shares no code with it."""

from math import inf

import pytest
from plan_costs import costs_of
from plan_oracle import KINDS_OF_TABLES, Everything, table
from tests_support import examples

from kdlab.papers.pipe_bd import barrier_bound
from kdlab.papers.pipe_bd.barrier_bound import barrier_bound_s
from kdlab.papers.pipe_bd.block_cost import Block, Profile, StageCosts
from kdlab.papers.pipe_bd.device_prices import DevicePrices
from kdlab.papers.pipe_bd.group_rows import Groups


def prices_of(costs, widest=None):
    kinds = list(dict.fromkeys(costs.kinds))
    numbers = tuple(costs.kinds.count(kind) for kind in kinds)
    groups = Groups(costs, kinds, decoupled=False)
    return DevicePrices(groups, numbers, widest or costs.devices)


@pytest.mark.tiered
@pytest.mark.parametrize("widest", [None, 1])
@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_no_plan_is_faster(kind, widest, monkeypatch):
    """Also where a slower plan is known, and by each of the prices."""
    for seed in range(examples(100, ci=5, quick=1)):
        case = table(f"barrier {seed}", kind, blocks=5, devices=4)
        optimum = Everything(case, decoupled=False, widest=widest).best()
        if optimum == inf:
            continue
        prices = prices_of(costs_of(case), widest)
        for exponent in (1.0, 2.0, 3.0):
            monkeypatch.setattr(barrier_bound, "_EXPONENTS", (exponent,))
            for known in (optimum, optimum * (1 + 1e-6), optimum * 1.2, optimum * 4):
                bound = barrier_bound_s(prices, known)
                assert bound <= optimum * (1 + 1e-9), (seed, exponent, known)


def test_the_second_stage_waits_for_the_teacher_of_the_first():
    """By hand: 1 s of relay, and 3 s of the second block; one device alone takes 6 s."""
    block = Block(teacher_s={1: 1.0}, student_s={1: 2.0})
    costs = StageCosts(Profile(types={"a": [block, block]}, devices=("a", "a")), 1)
    prices = prices_of(costs)
    assert 3.9 < barrier_bound_s(prices, 5.0) <= 4.0
    assert barrier_bound_s(prices, 3.5) == 3.5  # no plan is as quick
