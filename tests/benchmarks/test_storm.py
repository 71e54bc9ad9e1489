"""The storm bench, shorter: kdlab's runs and torchrun's."""

import pytest

from benchmarks import storm
from benchmarks.storm import _last, _lines, _storm
from benchmarks.storm_peer import steps_file
from kdlab.errors import BadInput


@pytest.mark.slow
@pytest.mark.nightly
def test_a_storm_takes_no_sample_away_and_brings_none_twice(monkeypatch, kdlab_home):
    monkeypatch.setattr(storm, "STEPS", 200)
    monkeypatch.setattr(storm, "_EVERY_S", (0.0, 6.0))
    monkeypatch.setattr(storm, "_MOST_FAILURES", 4)
    report = storm.measure(only=["kdlab", "ranks", "torchrun"])
    values = {figure["name"]: figure["value"] for figure in report["figures"]}
    for way in ("kdlab", "ranks", "torchrun"):
        assert values[f"steps/{way}/each_6_s"] == 200
        assert values[f"failures/{way}/each_6_s"] > 0
        assert values[f"samples_lost/{way}/each_6_s"] == 0
        assert values[f"samples_repeated/{way}/each_6_s"] == 0
    assert values["samples_undone/torchrun/calm"] == 0


def test_an_unknown_part_is_named_before_anything_starts():
    with pytest.raises(BadInput, match="no part peers"):
        storm.measure(only=["peers"])


def test_the_half_line_of_a_killed_rank_counts_for_nothing(tmp_path):
    assert _last(tmp_path) == 0
    steps_file(tmp_path, 0).write_text("10.0 1 64 0\n11.0 2 64 0\n12.0 3 6")
    steps_file(tmp_path, 1).write_text("10.5 1 64 0\n")
    assert _last(tmp_path) == 2
    assert [(line.rank, line.step) for line in _lines(tmp_path)] == [(0, 1), (0, 2), (1, 1)]


def test_failures_end_with_the_steps(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(storm.time, "time", lambda: float(next(clock)))
    monkeypatch.setattr(storm.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(storm, "STEPS", 40)
    begun, killed = iter(range(1000)), []
    assert _storm(15.0, 0.0, lambda: next(begun), lambda: not killed.append(1)) == 2
    assert len(killed) == 2
