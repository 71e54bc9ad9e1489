"""n = ceil(t_s / t_t), checked against the numbers of the paper (EDL-051)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.edl_dist.assignment import choose, static_share

rates = st.floats(0.1, 1e4)


def test_journal_table_3_needs_13_cores():
    assert static_share(57.14, 4.46) == 13


def test_readme_of_edl_needs_7_per_student():
    assert static_share(228.5, 37.85) == 7
    assert pytest.approx(48.3, abs=0.05) == 8 * 228.5 / 37.85


def test_the_reversed_formula_would_always_give_one():
    assert static_share(4.46, 57.14) == 1


def test_rounding_errors_do_not_cost_a_teacher():
    assert static_share(0.3, 0.1) == 3


@pytest.mark.parametrize(("t_s", "t_t"), [(0, 1), (1, 0), (-1, 1)])
def test_refuses_rates_that_are_none(t_s, t_t):
    with pytest.raises(ValueError, match="must be > 0"):
        static_share(t_s, t_t)


@given(st.dictionaries(st.text(min_size=1, max_size=3), rates, max_size=8), rates)
def test_chooses_just_enough(free, t_s):
    chosen = choose(free, t_s)
    total = sum(free[name] for name in chosen)
    assert len(set(chosen)) == len(chosen)
    if total < t_s * (1 - 1e-6):
        assert set(chosen) == set(free)  # all of them fall short
    elif chosen:
        assert total - free[chosen[-1]] < t_s  # the last one was needed


@given(rates, rates, st.integers(1, 50))
def test_equal_teachers_are_the_paper(t_s, t_t, spare):
    n = static_share(t_s, t_t)
    if n + spare <= 500:
        free = {f"t{i:03}": t_t for i in range(n + spare)}
        assert abs(len(choose(free, t_s)) - n) <= (0 if t_s / t_t % 1 > 1e-6 else 1)
