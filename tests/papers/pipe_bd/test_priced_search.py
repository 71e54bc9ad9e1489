"""The search by prices against a search of everything: a plan above the optimum, none below."""

from itertools import pairwise
from math import inf

import pytest
from plan_costs import costs_of
from plan_oracle import KINDS_OF_TABLES, Everything, table
from tests_support import examples

from kdlab.papers.pipe_bd import priced_search
from kdlab.papers.pipe_bd.device_prices import DevicePrices
from kdlab.papers.pipe_bd.group_rows import Groups
from kdlab.papers.pipe_bd.priced_search import PricedSearch


def search_of(case, widest=None):
    costs = costs_of(case)
    kinds = list(dict.fromkeys(costs.kinds))
    numbers = tuple(costs.kinds.count(kind) for kind in kinds)
    groups = Groups(costs, kinds, decoupled=True)
    return (
        PricedSearch(DevicePrices(groups, numbers, widest or costs.devices)),
        groups,
        numbers,
    )


def check(stages, groups, numbers, limit, blocks):
    assert [stages[0][0], stages[-1][1]] == [0, blocks]
    assert all(a[1] == b[0] for a, b in pairwise(stages))
    used = [sum(n) for n in zip(*(group for _, _, group in stages), strict=True)]
    assert all(n <= m for n, m in zip(used, numbers, strict=True))
    assert all(groups.seconds(*stage, -inf, inf) < limit for stage in stages)


@pytest.mark.tiered
@pytest.mark.parametrize("widest", [None, 1])
@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_it_finds_plans_just_above_the_optimum_and_proves_that_none_is_below(kind, widest):
    for seed in range(examples(50, ci=5, quick=1)):
        case = table(f"prices {seed}", kind, blocks=5, devices=4)
        optimum = Everything(case, decoupled=True, widest=widest).best()
        search, groups, numbers = search_of(case, widest)
        if optimum == inf:
            assert search.below(1e9) == (None, True)
            continue
        assert search.below(optimum * (1 - 1e-9)) == (None, True), seed
        stages, _ = search.below(optimum * (1 + 1e-9))
        check(stages, groups, numbers, optimum * (1 + 1e-9), case.blocks)


def test_it_gives_up_without_a_claim(monkeypatch):
    case = table("prices 0", "unlike devices", blocks=5, devices=4)
    optimum = Everything(case, decoupled=True).best()
    monkeypatch.setattr(priced_search, "_MOST_VISITS", 0)
    search, _, _ = search_of(case)
    assert search.below(optimum * 1.5) == (None, False)
    monkeypatch.setattr(priced_search, "_MOST_GROUPS", 1)
    search, _, _ = search_of(case)
    assert search.below(optimum * 1.5)[1] is False
