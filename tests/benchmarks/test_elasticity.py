"""A pool that follows its demand: the bench, with shorter waits."""

import pytest

from benchmarks import elasticity

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def values(figures):
    return {figure["name"].partition("/")[0]: figure["value"] for figure in figures}


def test_a_pool_grows_for_a_quick_student_and_is_gone_after_it(monkeypatch, kdlab_home):
    monkeypatch.setattr(elasticity, "_SLOW_S", 2.0)
    monkeypatch.setattr(elasticity, "_IDLE_S", 1.0)
    seconds = values(elasticity.elastic(1, lambda line: None))
    assert seconds["one_to_four_s"] > 0
    assert seconds["load_s"] > 0
