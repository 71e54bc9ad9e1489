import pytest

from kdlab.bench import sweep

pytestmark = pytest.mark.slow


def test_the_sweep_bench_has_its_figures(kdlab_home, elsewhere):
    found = sweep.measure(1, trials=2)
    figures = {f["name"]: f["value"] for f in found["figures"]}
    assert figures["driver_ms_per_trial"] > 0
    assert figures["parallel_efficiency"] > 0
    assert figures["seconds_until_a_pruned_trial_has_no_teacher"] >= 0
    assert not (elsewhere / "runs").exists()
