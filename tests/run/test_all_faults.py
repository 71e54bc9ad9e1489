"""Many faults of every kind of chaos in one run; its losses are those of a quiet run."""

import os
from collections import Counter
from functools import partial

import pytest
import tests_support

import kdlab
from kdlab.cluster.chaos import KINDS
from kdlab.events.log import select
from kdlab.experiment.folder import ENDED
from kdlab.run.handle.run import resume

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
FAULTS = int(os.environ.get("FAULTS", "40"))  # `make nightly`: 200
KINDS_HERE = [kind for kind in KINDS if not kind.endswith("_rank")]  # it has none


def started():
    return kdlab.load(
        "smoke/served",
        "soft_labels.order=strict",  # the same steps, whoever comes and goes
        "teacher_pool={type: cluster/local_pool, teachers: 3, chaos: true, engine: eager}",
        "train.epochs=1000000",
        "train.schedule=constant",
        "train.log_every_steps=1",
        "train.evaluate_every=1000000",
        "train.checkpoint_every_steps=40",
        "restart={most: 100}",
    ).start(lambda line: None)


def losses(run):
    return {e.step: e.loss for e in select(run.folder.events, "step_logged")}


def trains_or_ended(run, after):
    trains = run.state == "running" and max(losses(run), default=0) > after
    return trains or run.state in ENDED


def under_way(run, after):
    """Return the run once it trains beyond a step; resume it if a fault has ended it."""
    while True:
        tests_support.until(partial(trains_or_ended, run, after), every_s=0.5)
        if run.state not in ENDED:
            return run
        if run.state == "failed":
            assert f"kdlab resume {run.id}" in run.status.error, run.status
        run = resume(run.id)


def a_lot_of_trouble(run, seed):
    """Cause faults of all kinds until they are done or the run ends; return new teachers."""
    every = dict.fromkeys(KINDS_HERE, 1)
    trouble = kdlab.chaos(run, seed=seed, events=20, every_s=0.7, lasts_s=1.0, **every)
    tests_support.until(lambda: trouble.finished or run.state in ENDED)
    trouble.stop()
    return trouble.targets.joined


@pytest.mark.timeout(2400)
def test_many_faults_of_all_kinds_end_where_a_quiet_run_does(kdlab_home, elsewhere):
    run, hit, seed, joined = started(), Counter(), 0, []
    while sum(hit.values()) < FAULTS or set(hit) != set(KINDS_HERE):
        run = under_way(run, max(losses(run), default=0) + 50)
        joined += a_lot_of_trouble(run, seed)
        seed += 1
        hit = Counter(e.kind for e in select(run.folder.events, "chaos_caused"))
    steps = max(losses(run))
    run = under_way(run, steps)
    run.stop()  # or the last fault ends it first
    run.wait(timeout_s=300)
    quiet = started()
    tests_support.until(  # a log of thousands of lines is read at each look
        lambda: max(losses(quiet), default=0) >= steps, seconds=1000, every_s=1.0
    )
    quiet.stop()
    quiet.wait(timeout_s=300)
    for teacher in joined:  # they outlive the trouble, not the run
        teacher.wait(timeout=600)
    actual, expected = losses(run), losses(quiet)
    wrong = [n for n in range(1, steps + 1) if actual.get(n) != expected[n]]
    assert not wrong, f"{len(wrong)} of {steps} steps, from {wrong[0]} on"
