"""Texts and curves of the live view of a sweep, from its events only."""

import json

import pytest
from tests_support import event

from kdlab.notebook.sweep_watch import SweepWatch

SPACE = {
    "train.lr": {"low": 0.01, "high": 1.0, "log": True},
    "loss.weight": {"low": 0, "high": 1},
    "train.optimizer": {"choices": ["sgd", "adamw"]},
}
BEFORE = "the experiment as it is"


def started(direction="maximize"):
    watch = SweepWatch()
    watch.apply(
        event(
            "sweep_started", 1.0, study="s", sweep="s", group="g", tracking_uri=None,
            spec={"space": SPACE, "trials": 8}, spec_hash="", optuna="4",
            objectives=["validation_top1"], directions=[direction],
        )
    )  # fmt: skip
    return watch


def trial(watch, number, value, state="complete", why="suggested", lr=0.1, **more):
    values = {"train.lr": lr, "loss.weight": 0.25, "train.optimizer": "adamw"}
    watch.apply(
        event(
            "trial_started", 2.0 + number, number=number, values=values, run=None,
            why=why, worker=0,
        )
    )  # fmt: skip
    if state == "pruned":
        watch.apply(
            event("trial_stopping", 2.2 + number, number=number, epoch=2, value=value)
        )
    scores = {"validation_top1": value} if state == "complete" else None
    watch.apply(
        event(
            "trial_done", 2.5 + number, number=number, state=state, seconds=0.5,
            ended=number + 1, of_trials=8, run=None, set=values, values_found=scores, **more,
        )
    )  # fmt: skip


def test_the_best_so_far_never_falls_and_constraints_count():
    watch = started()
    trial(watch, 0, 50.0, why=BEFORE)
    trial(watch, 1, 40.0)
    trial(watch, 2, 90.0, feasible=False)
    trial(watch, 3, 60.0, lr=0.5)
    key = ("validation_top1", "best so far", "")
    assert [y for _, y in watch.curves[key]] == [50.0, 50.0, 50.0, 60.0]
    assert watch.best.number == 3
    assert [(m["step"], m["kind"]) for m in watch.marks] == [(0, "good"), (3, "good")]
    assert "train.lr = 0.5" in watch.marks[-1]["text"]
    page = watch.page({"train.lr": 0.9, "loss.weight": 0.1})
    assert "trial 3" in page["verdict"]["text"]
    assert page["verdict"]["text"].endswith(
        "better by 10 than with the unchanged setting (one seed, not confirmed)."
    )
    assert page["levels"][0]["points"] == [[0.0, 50.0]]
    # What breaks a constraint stands last, and says so.
    assert [row[0] for row in page["trials"][1:]] == [
        "3",
        "0",
        "1",
        "2 (breaks a constraint)",
    ]
    json.dumps(page)


def test_smaller_is_better_where_the_sweep_says_so():
    watch = started("minimize")
    trial(watch, 0, 5.0, why=BEFORE)
    trial(watch, 1, 3.0)
    assert watch.best.number == 1
    assert [line["score"] for line in watch.page({})["lines"]] == [0.0, 1.0]


def test_a_best_that_is_the_unchanged_setting_is_said():
    watch = started()
    trial(watch, 0, 50.0, why=BEFORE)
    trial(watch, 1, 40.0)
    verdict = watch.page({})["verdict"]
    assert (verdict["tone"], "unchanged setting" in verdict["text"]) == ("warn", True)


def test_what_fresh_seeds_said_is_the_end():
    watch = started()
    trial(watch, 0, 50.0, why=BEFORE)
    trial(watch, 1, 60.0)
    judged = {"kind": "did_not_help", "sentence": "the setting did not help"}
    watch.apply(event("sweep_done", 20.0, state="finished", result={"verdict": judged}))
    verdict = watch.page({})["verdict"]
    assert verdict["tone"] == "warn"
    assert verdict["text"].startswith("Best: trial 1 with")
    assert verdict["text"].endswith(judged["sentence"])


def test_where_values_lie_on_their_axes():
    watch = started()
    trial(watch, 0, 50.0)
    trial(watch, 1, 100.0, state="pruned", lr=1.0)
    trial(watch, 2, 75.0, state="failed")
    sweep = watch.page({})
    by_number = {line["number"]: line for line in sweep["lines"]}
    assert set(by_number) == {0, 1}  # a failed one has no value
    assert by_number[0]["at"] == pytest.approx([0.5, 0.25, 0.75, 0.0])
    assert by_number[1]["at"][0] == pytest.approx(1.0)
    assert by_number[1]["pruned"]
    assert [axis["name"] for axis in sweep["axes"]] == [*SPACE, "validation_top1"]
    assert len(watch.curves["validation_top1", "pruned", ""]) == 1


def test_a_setting_that_a_trial_does_not_have_has_no_place():
    watch = started()
    trial(watch, 0, 50.0)
    del watch.trials[0].values["loss.weight"]
    assert watch.page({})["lines"][0]["at"][1] is None


def test_before_any_trial_there_is_a_page():
    page = started().page({})
    assert page["lines"] == page["trials"] == []
    json.dumps(page)
