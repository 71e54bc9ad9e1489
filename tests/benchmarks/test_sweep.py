import pytest

from benchmarks import sweep

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def test_the_sweep_bench_has_its_figures(kdlab_home, elsewhere):
    report = sweep.measure(1, trials=2)
    figures = {f["name"]: f["value"] for f in report["figures"]}
    assert 0 < figures["driver_ms_per_trial"] < 2000
    assert 0.2 < figures["parallel_efficiency"] < 2
    assert 0 <= figures["seconds_until_a_pruned_trial_has_no_teacher"] < 20
    assert not (elsewhere / "runs").exists()
