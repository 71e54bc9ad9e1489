"""The benchmark of EC-DNN, small: it measures what its page says."""

import pytest

from kdlab.bench.ec_dnn import MeasuredSeconds, measure
from kdlab.methods.ensemble.local_job import Prices


def test_a_budget_holds_what_is_relabelled_too():
    costs = MeasuredSeconds(Prices(step_s=0.01, row_s=1e-5), batch=50, workers=4)
    assert costs.iterations(1.0) == 100
    assert costs.iterations(1.0, p=0.1) == int(1 / (0.011 + 0.1 * 50 * 4 * 1e-5))
    assert costs.iterations(1.0, diversity=0.6, p=0.1) < 80


@pytest.mark.slow
@pytest.mark.nightly
def test_all_figures(kdlab_home, elsewhere):
    said = []
    report = measure(
        repeats=1,
        say=said.append,
        overrides=[
            "data={use: data/digits_tiny}",
            "student={type: models/patch_net, patch: 8, width: 32}",
            "train.batch=20",
        ],
        budget_s=0.3,
    )
    figures = {f["name"]: f for f in report["figures"]}
    for name in ("ec_g", "ec_l", "ma_g", "ma_l", "e_g", "e_l", "s"):
        assert 0 < figures[f"error_pct/{name}"]["value"] < 95
    assert figures["larger_loss_than_locals_share/ensemble"]["value"] == 0
    assert {"speed/ec_g", "speed/ec_l", "speed/e_g"} <= set(figures)
    for name in ("s", "e", "ma", "ec"):  # so short a time is not equal, but it was measured
        assert figures[f"parallel_s/{name}"]["value"] > 0
    assert any("validation error" in line for line in said)
