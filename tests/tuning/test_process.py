"""A sweep from inside, from its folder to its result: trials are simulations, or a script."""

from pathlib import Path

import optuna
import pytest
import yaml
from scripted_sweeps import (
    SweepFromInside,
    events,
    finished_values,
    simulated,
    spec_at,
    top1,
    train,
)
from small_sweeps import SIMULATED, TRAINED, searched

import kdlab
from kdlab.errors import BadInput
from kdlab.tuning.trial_workers import TrialOrder


@pytest.mark.long
def test_a_simulated_sweep_leaves_its_best_as_a_card_and_its_pictures(elsewhere):
    few = {key: SIMULATED["space"][key] for key in ("cases.0.teachers", "lt")}
    inside = SweepFromInside(SIMULATED, simulated, space=few)
    sweep, result = inside.sweep, inside.sweep.result
    assert (inside.code, sweep.state) == (0, "finished")
    assert {"study", "best", "confirmed", "trials", "driver_ms_per_trial"} <= set(result)
    assert {"sweep_dir", "status"} <= set(result)
    assert result["trials"]["complete"] == 12
    metrics = result["best"]["metrics"]
    assert metrics["of_n_training"] >= 0.9
    rows = [row for row in sweep.rows() if row.feasible]
    assert all(row.values["teachers"] >= metrics["teachers"] for row in rows)
    card = yaml.safe_load((sweep.path / "best/registry/simulations/small.yaml").read_text())
    assert card["cases"][0]["teachers"] == metrics["teachers"]
    assert "teachers" in sweep.table()
    assert "data:image/svg+xml" in sweep._repr_html_()
    drawn = {p.name for p in sweep.pictures()}
    assert {"history.png", "pareto.png"} <= drawn
    assert drawn == {Path(p).name for p in result["figures"]}
    assert [e.state for e in events(inside, "sweep_done")] == ["finished"]


def test_the_best_of_an_earlier_sweep_is_tried_first(no_pictures):
    first = SweepFromInside(SIMULATED, simulated).sweep.result
    warm = {"study": "small", "best": 2}
    wider = SIMULATED["space"] | {"per_teacher": {"low": 1, "high": 4}}
    changes = {"space": wider, "warm_start": warm, "trials": 5}
    again = SweepFromInside(SIMULATED, simulated, "again", **changes).sweep
    (best, _) = [row for row in again.rows() if row.why == "of an earlier sweep"]
    assert best.set == first["best"]["set"] | {"per_teacher": 2}  # the card's own
    assert again.result["trials"]["complete"] == 5
    narrow = SIMULATED["space"] | {"lt": {"low": 100, "high": 200}}
    with pytest.raises(BadInput, match=r"(?s)No setting of the sweep small.*lt is "):
        searched(SIMULATED, space=narrow, warm_start=warm).start("other")
    with pytest.raises(kdlab.KdlabError, match=r"no sweep .smalls..*Nearest: small"):
        searched(SIMULATED, warm_start={"study": "smalls"}).start("other")
    assert not (again.path.parent / "other").exists()


def test_a_sweep_finds_confirms_and_keeps_the_best(no_pictures):
    def with_weights(child, order):
        network = Path(order.run) / "members/none/seed0/student.safetensors"
        network.parent.mkdir(parents=True)
        network.write_bytes(b"a network")
        return train(child, order)

    seeds = {"confirm": {"seeds": [11, 12]}}
    inside = SweepFromInside(TRAINED, with_weights, **seeds)
    sweep, result = inside.sweep, inside.sweep.result
    best = result["best"]
    assert best["values"]["validation_top1"] == max(
        v[0] for v in finished_values(sweep).values()
    )
    again = result["confirmed"]
    assert again["seeds"] == [11, 12]
    as_it_is = [top1({"seeds": [s], "train": {"lr": 0.05}}) for s in (11, 12)]
    assert again["as_it_is"]["values"] == as_it_is
    recipe = {"lr": best["set"]["train.lr"]}
    assert again["best"]["values"] == [
        top1({"seeds": [s], "train": recipe}) for s in (11, 12)
    ]
    assert again["optimistic"] == best["values"]["validation_top1"]
    assert again["failed"] == {}
    saved = yaml.safe_load((sweep.path / "best/configs/small.yaml").read_text())
    assert saved["train"]["lr"] == best["set"]["train.lr"]
    assert {p.parent.name for p in sweep.save("tuned")} == {"configs", "train"}
    assert (
        kdlab.load("tuned").resolved["train"]["momentum"] == best["set"]["train.momentum"]
    )
    with pytest.raises(BadInput, match=r"exists already"):
        sweep.save("tuned")
    runs = {p.parents[3] for p in sweep.path.glob("trials/*/**/*.safetensors")}
    assert runs == {Path(best["run_dir"])}  # the weights of the others are gone
    (summary,) = events(inside, "searched")
    assert summary.best == best["number"]


def test_a_trial_trains_all_seeds_without_mlflow_of_its_own(no_pictures):
    inside = SweepFromInside(TRAINED, train, seeds=[3, 4], trials=1)
    spec = spec_at(TrialOrder(number=0, run=str(inside.folder.trial(0))))
    assert spec["seeds"] == [3, 4]
    assert spec["tracking"]["enabled"] is False
    assert inside.sweep.result["best"]["values"]["validation_top1"] == top1(spec)


@pytest.mark.long
def test_sqlite_and_a_time_limit(no_pictures):
    limits = {"storage": "sqlite", "time_limit_s": 1e-6, "trials": 5000}
    inside = SweepFromInside(SIMULATED, simulated, jobs=1, **limits)
    result = inside.sweep.result
    assert result["ended_early"] == "the time limit of 1e-06 s"
    assert result["trials"]["complete"] == 1  # none begins later, what began ends
    (known,) = optuna.get_all_study_summaries(f"sqlite:///{result['storage']}")
    assert known.n_trials == result["trials"]["total"]
