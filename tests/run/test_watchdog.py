"""A run's process that is killed restarts, and ends like one without faults."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from runs_here import RunsHere
from tests_support import until

import kdlab
from kdlab.events.runs import RunRestarted
from kdlab.events.training import StepLogged
from kdlab.run.handle.run import resume

# A stop that comes while the watchdog forks; signals that it sends are written to a file.
FORKING = """
import os, signal, sys, time
from pathlib import Path
from kdlab.run.process.watchdog import WatchdogParent, watched

heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(number))

def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    return os.fork()

def recorded(pid, number):
    with Path(sys.argv[1]).open("a") as sent:
        sent.write(f"{number:d} ")
    os.kill(pid, number)

watched(WatchdogParent(Path("nowhere"), fork=interrupted, kill=recorded))
while not heard:
    time.sleep(0.01)
"""


@pytest.mark.processes
def test_a_stop_while_it_forks_is_passed_on_once(tmp_path):
    """A second signal would end everything at once."""
    sent = tmp_path / "sent"
    subprocess.run([sys.executable, "-c", FORKING, str(sent)], check=True, timeout=120)
    assert sent.read_text().split() == [f"{signal.SIGINT:d}"]


# A child that says who it is, and works on.
WORKING = """
import os, sys, time
from pathlib import Path
from kdlab.run.process.watchdog import WatchdogParent, watched

watched(WatchdogParent(Path("nowhere")))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.processes
def test_a_watchdog_that_is_killed_leaves_no_child_behind():
    command = [sys.executable, "-c", WORKING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watchdog:
        child = psutil.Process(int(watchdog.stdout.readline()))
        assert child.ppid() == watchdog.pid
        watchdog.kill()
        until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def worker_of(run):
    """Wait for the child of the run's watchdog, and return it."""

    def find_child():
        with contextlib.suppress(psutil.Error):
            below = run.folder.family()[1:]
            return next((c for c in below if c.status() != psutil.STATUS_ZOMBIE), None)

    return until(find_child)


def losses(run):
    """Return the last loss of each step: some steps were done again."""
    return {e.step: e.loss for e in run.events() if isinstance(e, StepLogged)}


def student(run):
    (path,) = run.path.glob("members/*/seed0/student.safetensors")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def steps(run):
    return sum(isinstance(e, StepLogged) for e in run.events())


LONG = {  # enough epochs that a kill meets the training
    "train.epochs": 100,
    "train.evaluate_every": 100,
    "train.checkpoint_every_steps": 20,
    "train.log_every_steps": 1,
}


@pytest.fixture
def long(spawned):
    return ["smoke/in_process", LONG]


@pytest.mark.slow("a run in a Python of its own that imports torch three times")
def test_a_killed_process_is_started_again_and_ends_the_same(
    kdlab_home, elsewhere, monkeypatch, spawned
):
    small = {"student": {"type": "models/patch_net", "patch": 8, "width": 8}}
    experiment = kdlab.load("smoke/none", LONG, small)
    with monkeypatch.context() as patch:
        patch.setattr("kdlab.run.handle.run.spawn", RunsHere(patch))
        quiet = experiment.start()
    run = experiment.start()
    for number, sent in enumerate((signal.SIGKILL, signal.SIGSEGV), 1):
        child = worker_of(run)
        seen = steps(run)
        until(lambda seen=seen: steps(run) > seen + 30)
        child.send_signal(sent)
        child.wait()
        until(lambda n=number: restarts(run) == n)
    run.wait()
    assert [e.text() for e in run.events() if isinstance(e, RunRestarted)] == [
        "the run's process was killed by SIGKILL; it restarts from its newest checkpoint (1 of 3)",
        "the run's process was killed by SIGSEGV; it restarts from its newest checkpoint (2 of 3)",
    ]
    assert losses(run) == losses(quiet)
    assert student(run) == student(quiet)


def restarts(run):
    return sum(isinstance(e, RunRestarted) for e in run.events())


@pytest.mark.nightly
def test_it_is_given_up_after_so_many_and_resumed_by_hand(kdlab_home, elsewhere, long):
    run = kdlab.load(*long, {"restart.most": 1}).start(lambda line: None)
    for _ in range(2):
        child = worker_of(run)
        child.kill()
        child.wait()
    until(lambda: run.state == "failed")
    assert "after 1 restarts within 3600 s" in run.status.error
    assert f"kdlab resume {run.id}" in run.status.error
    assert json.loads((run.path / "status.json").read_text())["exit_code"] == 1
    resume(run.id).wait()
    assert student(run) == student(kdlab.load(*long).start(lambda line: None).wait())


@pytest.mark.nightly
def test_who_asks_for_the_end_gets_it(kdlab_home, elsewhere, long):
    """A stop, a kill of all, and a kill of the watchdog alone, which leaves no child behind."""
    for end, state in (("stop", "stopped"), ("kill", "stopped"), ("orphan", "lost")):
        run = kdlab.load(*long, {"train.epochs": 100_000}).start(lambda line: None)
        child = worker_of(run)
        until(lambda run=run: steps(run) > 0)
        if end == "orphan":
            os.kill(run.folder.process().pid, signal.SIGKILL)
        else:
            getattr(run, end)()
        until(lambda child=child: not child.is_running() or child.status() == "zombie")
        until(lambda run=run, state=state: run.state == state)
        assert restarts(run) == 0


@pytest.mark.nightly
def test_an_end_that_is_asked_for_between_two_children_is_kept(kdlab_home, elsewhere, long):
    run = kdlab.load(*long, {"train.epochs": 100_000}).start(lambda line: None)
    child = worker_of(run)
    until(lambda: steps(run) > 0)
    child.kill()
    run.stop()
    until(lambda: run.state in ("stopped", "lost"))
    until(lambda: not run.folder.alive())
