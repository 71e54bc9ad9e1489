"""The benchmark of EC-DNN: its candidates, its choice among them, and all its figures."""

import pytest

from benchmarks.ec_dnn import (
    BenchedMethod,
    MeasuredSeconds,
    candidates,
    chosen,
    measure,
)
from kdlab.errors import Diverged
from kdlab.methods.ensemble.local_job import UnitCosts
from kdlab.report.methods import ErrorCurve
from kdlab.report.round_errors import CostTotals, RoundErrors


def test_a_budget_holds_what_is_relabelled_too():
    costs = MeasuredSeconds(UnitCosts(step_s=0.01, row_s=1e-5), batch=50, workers=4)
    assert costs.iterations(1.0) == 100
    assert costs.iterations(1.0, p=0.1) == int(1 / (0.011 + 0.1 * 50 * 4 * 1e-5))
    assert costs.iterations(1.0, diversity=0.6, p=0.1) < 80


@pytest.mark.parametrize("steps", [1, 49, 1000])
def test_the_time_of_some_steps_is_as_many_iterations(steps):
    for number in range(1, 1000):
        costs = MeasuredSeconds(UnitCosts(number * 1.7e-5, row_s=1e-5), batch=64, workers=4)
        assert costs.iterations(steps * costs.prices.step_s) == steps


COSTS = MeasuredSeconds(UnitCosts(step_s=0.01, row_s=2.4e-5), batch=64, workers=4)


def test_whoever_has_a_choice_has_as_many_candidates():
    names = [name for name, _ in candidates(COSTS, 20.0)]
    assert {name: names.count(name) for name in names} == {"s": 1, "e": 1, "ma": 6, "ec": 6}


@pytest.mark.parametrize("budget_s", [20.0, 10.0, 5.0])
def test_ten_communications_are_not_eleven(budget_s):
    asked = [10, 10, 25, 10, 10, 10]
    cases = [case for name, case in candidates(COSTS, budget_s) if name == "ec"]
    rounds = [-(-case.iterations // case.tau) for case in cases]
    assert rounds == [min(most, n) for most, n in zip(asked, rounds, strict=True)]
    assert [n for n, most in zip(rounds, asked, strict=True) if most == 10] == [10] * 5


def test_a_shorter_time_has_the_same_settings():
    for (name, full), (short, half) in zip(
        candidates(COSTS, 20.0), candidates(COSTS, 10.0), strict=True
    ):
        assert name == short
        assert (full.p, full.alpha, full.beta) == (half.p, half.alpha, half.beta)
        assert half.iterations == pytest.approx(full.iterations / 2, abs=1)


def curve(validation):
    """Curve of a training with this validation error at its end; None: it diverged."""
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
    best = chosen(cases, [curve(30), curve(None), curve(21), curve(22)])
    assert best == {"s": 0, "ma": 2}
    with pytest.raises(Diverged, match=r"No training of ma came to its end.*train\.lr"):
        chosen(cases, [curve(30), curve(None), curve(None), curve(None)])


@pytest.mark.slow
@pytest.mark.nightly
def test_all_figures(kdlab_home, elsewhere):
    lines = []
    report = measure(
        repeats=1,
        say=lines.append,
        overrides=[
            "data={use: data/digits_tiny}",
            "student={type: models/patch_net, patch: 8, width: 32}",
            "train.batch=20",
        ],
        budget_steps=100,
    )
    figures = {f["name"]: f for f in report["figures"]}
    for name in ("ec_g", "ec_l", "ma_g", "ma_l", "e_g", "e_l", "s"):
        assert 0 < figures[f"error_pct/{name}"]["value"] < 95
    assert figures["larger_loss_than_locals_share/ensemble"]["value"] == 0
    read = set(figures) | set(report["undefined"])
    for name in ("speed", "times_at_target", "points_better_at_50_pct"):
        assert {f"{name}/{member}" for member in ("ec_g", "ec_l", "e_g")} <= read
    assert {"budget_ratio/ec_g", "budget_ratio/e_g"} <= read
    assert all(report["undefined"].values())
    assert {"tau/ma", "tau/ec", "p/ec", "beta/ec", "beta_later/ec"} <= set(figures)
    assert {name: len(curves) for name, curves in report["curves"].items()}["ec_g"] == 1
    for name in ("s", "e", "ma", "ec"):  # so short a time is not equal, but it was measured
        assert figures[f"parallel_s/{name}"]["value"] > 0
    assert any("validation error" in line for line in lines)
