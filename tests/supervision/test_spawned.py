"""Each kind of process once as users have it: a Python of its own that imports for itself.

Elsewhere children of tests are forked (tests/fork_server.py). Which Pythons began is written by
the Pythons themselves, so that none is missed.
"""

import ast
import os
from pathlib import Path

import pytest
from http_site import Site
from small_sweeps import TRAINED, searched
from tests_support import until

import kdlab

HOUSE = Path(__file__).parents[2] / "kdlab"

SERVED = {
    "kdlab.run.process.child",
    "kdlab.cluster.coordination.scheduler_process",
    "kdlab.cluster.teachers.teacher_server",
    "kdlab.cluster.reader.student_reader",
    "kdlab.tracking.follow",
}
STUDENT, BLOCKWISE = {"kdlab.methods.student.rank"}, {"kdlab.methods.blockwise.rank"}
ENSEMBLE = {"kdlab.methods.ensemble.rank"}
SWEEP = {"kdlab.run.process.child", "kdlab.tuning.trial_worker"}
ALERTED = {"kdlab.run.handle.alerts"}
EMULATED = {"kdlab.testing.emulated_teachers"}
# Started by benches: tests/benchmarks has them.
OTHERS = {"kdlab.testing.emulated_students"}

# Each Python reads this before anything else; a forked one does not.
_WRITES = """
import os, sys
with open(os.environ["KDLAB_TEST_STARTED"], "a") as file:
    file.write(" ".join(sys.orig_argv) + "\\n")
"""


@pytest.fixture
def began(spawned, kdlab_home, elsewhere, monkeypatch):
    """The modules of kdlab that Pythons were started with so far."""
    (elsewhere / "site").mkdir()
    (elsewhere / "site" / "sitecustomize.py").write_text(_WRITES)
    written = elsewhere / "started"
    monkeypatch.setenv("KDLAB_TEST_STARTED", str(written))
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv(
        "PYTHONPATH", f"{elsewhere / 'site'}{os.pathsep}{before}".rstrip(":")
    )

    def modules():
        lines = [
            line.split(" -m ", 1)[-1].split() for line in written.read_text().splitlines()
        ]
        return {
            words[1] if words[0] == "kdlab.supervision" else words[0]
            for words in lines
            if words[0].startswith("kdlab.")
        }

    return modules


def finished(name, *overrides):
    run = kdlab.load(name, "train.epochs=1", *overrides).start(lambda line: None)
    assert run.wait(timeout_s=600).state == "finished", run.status.error
    return run.result


@pytest.mark.slow("six Pythons, four of them with torch or MLflow")
def test_a_served_and_tracked_run(began):
    result = finished("smoke/served", "tracking.enabled=true")
    assert result["samples_lost"] == result["samples_repeated"] == 0
    assert result["tracking_uri"]
    assert began() == SERVED


@pytest.mark.processes("three Pythons with torch")
def test_ranks_of_a_student(began):
    ranks = "aggregation={type: train/aggregation/all_reduce, ranks: 2, standby: 0}"
    finished("smoke/none", ranks)
    assert began() >= STUDENT


@pytest.mark.processes("three Pythons with torch")
def test_ranks_of_a_pipeline(began):
    finished("smoke/blockwise")
    assert began() >= BLOCKWISE


@pytest.mark.processes("four Pythons with torch")
def test_workers_of_an_ensemble(began):
    only = (
        "method.compare={ec_dnn: {aggregation: {type: train/aggregation/ensemble, tau: 3}}}"
    )
    finished("smoke/ensemble", only, "method.workers=2", "method.processes=true")
    assert began() >= ENSEMBLE


@pytest.mark.processes("five Pythons, two with torch")
def test_emulated_teachers(began):
    finished("smoke/served", "teacher_pool=teacher_pools/emulated")
    assert began() >= EMULATED


@pytest.mark.processes("a driver and a worker with torch and optuna")
def test_a_sweep(began):
    sweep = searched(TRAINED, trials=1).start("one")
    try:
        assert sweep.wait(timeout_s=600).result["trials"]["complete"] == 1
    finally:
        sweep.kill()
    assert began() == SWEEP


@pytest.mark.processes("two Pythons, one with torch")
def test_a_run_whose_user_is_alerted(began, monkeypatch):
    site = Site()
    monkeypatch.setenv("KDLAB_WEBHOOK", site.url("/"))
    finished("smoke/none")
    until(lambda: site.posted)
    site.close()
    assert began() == ALERTED | {"kdlab.run.process.child"}


def test_every_kind_of_process_is_started_here():
    """A module of kdlab that can be started and is missing above was forgotten."""
    rooms = {"cluster", "methods", "run", "tracking", "tuning", "supervision", "testing"}
    mains = {
        ".".join(("kdlab", *path.relative_to(HOUSE).with_suffix("").parts))
        for path in HOUSE.rglob("*.py")
        if path.relative_to(HOUSE).parts[0] in rooms
        and any(
            isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
            for node in ast.parse(path.read_text()).body
        )
    }
    kinds = (SERVED, STUDENT, BLOCKWISE, ENSEMBLE, SWEEP, ALERTED, EMULATED, OTHERS)
    assert mains == set().union(*kinds)
