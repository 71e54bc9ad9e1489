"""The end of a sweep in words."""

from dataclasses import replace

from kdlab.codec import from_builtins, to_builtins
from kdlab.report.verdict import of_setting
from kdlab.tuning.outcome import (
    BestTrial,
    Confirmed,
    Spread,
    SweepOutcome,
    SweepResult,
    TrialCounts,
)

BEST = BestTrial(
    number=7, state="complete", why="suggested", set={"train.lr": 0.125, "loss": "losses/dkd"},
    values={"validation_top1": 81.25}, feasible=True, error=None, retry_of=None,
    run_dir="/runs/7", seconds=3.0, metrics={"validation_top1": 81.25},
)  # fmt: skip
OUTCOME = SweepOutcome(
    study="s", objectives=["validation_top1"], directions=["maximize"], best=BEST, front=[],
    trials=TrialCounts(total=9, complete=5, pruned=3, failed=1, tried_again=2),
    sweep="sweeps/s", confirmed=None, saved=["best/configs/s.yaml"], figures=[],
    jobs=2, driver_ms_per_trial=1.5, ended_early=None, wall_seconds=9.0, storage="j",
    tracking_uri=None, sweep_dir="/s",
)  # fmt: skip


def test_the_best_its_values_and_what_became_of_all_others():
    assert str(OUTCOME).splitlines() == [
        "Best: trial 7",
        "  validation_top1 = 81.25",
        "  train.lr = 0.125",
        "  loss = losses/dkd",
        "9 trials: 5 complete, 3 pruned, 1 failed; 2 lost and retried",
        "Saved: best/configs/s.yaml",
    ]
    assert OUTCOME.trials.ended == 9


def test_fresh_seeds_stand_beside_what_the_search_had():
    again = Confirmed(
        metric="validation_top1", seeds=[11, 12], optimistic=81.25, failed={},
        best=Spread(mean=79.5, std=0.75, values=[79.0, 80.0]),
        as_it_is=Spread(mean=70.0, std=None, values=[70.0]),
    )  # fmt: skip
    text = str(replace(OUTCOME, confirmed=again))
    assert "With fresh seeds [11, 12], validation_top1:" in text
    assert "  the best: 79.5 ± 0.75\n" in text
    assert "  the experiment as it is: 70\n" in text  # one seed has no spread
    assert "(in the search, optimistic: 81.25)" in text


def test_it_ends_with_the_verdict():
    before, after = {11: 69.0, 12: 71.0, 13: 70.0}, {11: 79.0, 12: 80.0, 13: 79.5}
    judged = of_setting("validation_top1", before, after, 1, confirmed=True)
    text = " ".join(str(replace(OUTCOME, verdict=judged)).split())
    assert (
        "the setting helped by 9.5 (8.26 to 10.7 with 95 % confidence: 3 fresh seeds)"
        in text
    )


def test_it_comes_back_from_json():
    judged = of_setting("validation_top1", {0: 69.0}, {0: 70.0}, 1, confirmed=False)
    for outcome in (OUTCOME, replace(OUTCOME, verdict=judged)):
        assert from_builtins(SweepOutcome, to_builtins(outcome)) == outcome


def test_a_notebook_shows_the_result_in_words_and_nothing_of_it_is_markup():
    result = SweepResult(to_builtins(replace(OUTCOME, saved=["<b>.yaml"])))
    assert result["study"] == OUTCOME.study
    shown = result._repr_html_()
    assert f"Best: trial {OUTCOME.best.number}" in shown
    assert "Saved: &lt;b&gt;.yaml" in shown
    assert OUTCOME.sweep_dir in shown
