"""A pool that follows its demand, and a run in a storm: as they are measured, and shorter."""

import pytest

from kdlab.bench import elasticity

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def values(figures):
    return {figure["name"].partition("/")[0]: figure["value"] for figure in figures}


def test_a_pool_grows_for_a_quick_student_and_is_gone_after_it(monkeypatch, kdlab_home):
    monkeypatch.setattr(elasticity, "_SLOW_S", 2.0)
    monkeypatch.setattr(elasticity, "_IDLE_S", 1.0)
    found = values(elasticity.elastic(1, lambda line: None))
    assert found["one_to_four_s"] > 0
    assert found["load_s"] > 0


def test_a_storm_takes_no_sample_away_and_brings_none_twice(monkeypatch, kdlab_home):
    monkeypatch.setattr(elasticity, "_CALM_S", 4.0)
    monkeypatch.setattr(elasticity, "_STORM_S", 30.0)
    monkeypatch.setattr(elasticity, "_EVERY_S", 9.0)
    found = values(elasticity.storm(lambda line: None))
    assert found["kills"] >= 2
    assert (found["samples_lost"], found["samples_repeated"]) == (0, 0)
    assert found["over_calm"] > 0
