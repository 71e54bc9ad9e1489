"""Which trial is the best, whoever shows it."""

import pytest
from tests_support import event

from kdlab.events.sweep_state import SweepState

TWO = {"objectives": ["top1", "ms"], "directions": ["maximize", "minimize"]}


def seen(trials, **facts):
    state = SweepState()
    state.apply(event("sweep_started", **TWO | facts))
    for number, (top1, ms, feasible) in enumerate(trials):
        values = {"top1": top1, "ms": ms}
        state.apply(
            event("trial_done", number=number, state="complete", ended=number + 1, of_trials=9,
                  values_found=values, feasible=feasible)
        )  # fmt: skip
    return state


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([(50.0, 2.0, True), (60.0, 9.0, True)], 1),
        ([(50.0, 2.0, True), (50.0, 1.0, None)], 1),  # the second objective decides
        ([(50.0, 2.0, True), (90.0, 1.0, False)], 0),  # breaks a constraint
        ([(50.0, 2.0, True), (float("nan"), 1.0, True), (None, 1.0, True)], 0),
        ([(float("inf"), 2.0, True)], None),
        ([(50.0, None, True), (50.0, 3.0, True)], 1),
    ],
)
def test_the_best_trial(trials, best):
    state = seen(trials)
    assert (None if state.best is None else state.best.number) == best
    assert (state.metric, state.sign, state.ended) == ("top1", -1, len(trials))


def test_what_is_smaller_is_better_where_the_sweep_says_so():
    ways = {"directions": ["minimize", "minimize"]}
    assert seen([(50.0, 2.0, True), (40.0, 9.0, True)], **ways).best.number == 1


def test_a_trial_whose_begin_nobody_saw_counts():
    state = seen([(50.0, 2.0, True)])
    assert state.trials[0].state == "complete"
    state.apply(event("sweep_done", state="failed", error="no space is left"))
    assert (state.state, state.error) == ("failed", "no space is left")


def test_a_trial_that_is_tried_again_does_not_run_any_more():
    state = seen([])
    for number in (0, 1):
        state.apply(event("trial_started", number=number, values={}, why="suggested"))
    state.apply(event("trial_requeued", number=0, why="signal 9", tries=1))
    assert {t.number: t.state for t in state.trials.values()} == {1: "running"}
