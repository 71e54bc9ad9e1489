"""The benchmark of EC-DNN, small: it measures what its page says."""

import pytest

from benchmarks.ec_dnn import BenchedMethod, MeasuredSeconds, chosen, measure
from kdlab.errors import Diverged
from kdlab.methods.ensemble.local_job import Prices
from kdlab.report.methods import ErrorCurve
from kdlab.report.round_errors import CostTotals, RoundErrors


def test_a_budget_holds_what_is_relabelled_too():
    costs = MeasuredSeconds(Prices(step_s=0.01, row_s=1e-5), batch=50, workers=4)
    assert costs.iterations(1.0) == 100
    assert costs.iterations(1.0, p=0.1) == int(1 / (0.011 + 0.1 * 50 * 4 * 1e-5))
    assert costs.iterations(1.0, diversity=0.6, p=0.1) < 80


def curve(validation):
    """A training that ended there; None diverged."""
    if validation is None:
        return ErrorCurve([], CostTotals())
    last = RoundErrors(
        round=0,
        iterations=1,
        parallel_s=1.0,
        locals=[50.0],
        global_=50.0,
        compressed=[],
        chosen=50.0,
        validation_locals=[validation],
        validation_global=validation,
        local_losses=[1.0],
        global_loss=1.0,
        models=[0],
    )
    return ErrorCurve([last], CostTotals())


def test_the_best_on_validation_is_chosen_and_what_diverged_is_not():
    cases = [("s", BenchedMethod(name="s"))]
    cases += [("ma", BenchedMethod(name=f"ma {tau}", tau=tau)) for tau in (4, 8, 16)]
    found, curves = chosen(cases, [curve(30), curve(None), curve(21), curve(22)])
    assert {name: case.tau for name, case in found.items()} == {"s": None, "ma": 8}
    assert curves["ma"].last.validation_global == 21
    with pytest.raises(Diverged, match=r"No training of ma came to its end.*train\.lr"):
        chosen(cases, [curve(30), curve(None), curve(None), curve(None)])


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
