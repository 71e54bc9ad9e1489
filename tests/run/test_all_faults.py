"""A hundred faults of every kind that chaos knows, in one run: as if nothing had been."""

from collections import Counter

import pytest
import tests_support

import kdlab
from kdlab.cluster.chaos import KINDS
from kdlab.events.log import select
from kdlab.experiment.folder import ENDED
from kdlab.run.handle.run import resume

pytestmark = pytest.mark.slow
FAULTS = 100
KINDS_HERE = [kind for kind in KINDS if not kind.endswith("_rank")]  # it has none


def started():
    return kdlab.load(
        "smoke/served",
        "soft_labels.order=strict",  # the same steps, whoever comes and goes
        "teacher_pool={type: cluster/local_pool, teachers: 3, chaos: true}",
        "train.epochs=1000000",
        "train.schedule=constant",
        "train.log_every_steps=1",
        "train.evaluate_every=1000000",
        "train.checkpoint_every_steps=40",
        "restart={most: 100}",
    ).start(lambda line: None)


def losses(run):
    return {e["step"]: e["loss"] for e in select(run.folder.events, "step")}


def goes_on(run, after):
    return run.state == "running" and max(losses(run), default=0) > after


def a_lot_of_trouble(run, seed):
    """Of all kinds; what ends the run ends the lot early. The run, under way or to be so."""
    before = max(losses(run), default=0)
    tests_support.until(lambda: goes_on(run, before + 50))
    every = dict.fromkeys(KINDS_HERE, 1)
    trouble = kdlab.chaos(run, seed=seed, events=20, every_s=0.7, lasts_s=1.0, **every)
    tests_support.until(lambda: trouble.finished or run.state in ENDED)
    trouble.stop()
    if run.state not in ENDED:
        return run
    if run.state == "failed":
        assert f"kdlab resume {run.id}" in run.status.error, run.status
    return resume(run.id)


@pytest.mark.timeout(1800)
def test_a_hundred_faults_of_all_kinds_end_where_a_quiet_run_does(kdlab_home, elsewhere):
    run, hit, seed = started(), Counter(), 0
    while sum(hit.values()) < FAULTS or set(hit) != set(KINDS_HERE):
        run = a_lot_of_trouble(run, seed)
        seed += 1
        hit = Counter(e["kind"] for e in select(run.folder.events, "chaos"))
    steps = max(losses(run))
    tests_support.until(lambda: goes_on(run, steps))
    run.stop()
    run.wait(timeout_s=300)
    assert run.state == "stopped", run.status
    quiet = started()
    tests_support.until(lambda: max(losses(quiet), default=0) >= steps)
    quiet.stop()
    quiet.wait(timeout_s=300)
    found, expected = losses(run), losses(quiet)
    wrong = [n for n in range(1, steps + 1) if found.get(n) != expected[n]]
    assert not wrong, f"{len(wrong)} of {steps} steps, from {wrong[0]} on"
