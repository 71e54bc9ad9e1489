"""Runs and sweeps that a command starts and watches: Ctrl-C, --detach, --json."""

import argparse
import json
import signal
import subprocess
import sys

import psutil
import pytest
from tests_support import until

import kdlab
from kdlab import cli
from kdlab.commands import command, sweep
from kdlab.events.general import Note
from kdlab.experiment.folder import RunStatus


class ScriptedRun:
    """A run that records its calls; `wait` does what the test says."""

    id = name = "20260101-000000-aaaa"
    path = "/runs/20260101-000000-aaaa"

    def __init__(self, wait=lambda see: None):
        self._wait, self.calls = wait, []

    def wait(self, see, since=0.0):
        self.calls.append(("wait", since))
        self._wait(see)

    def stop(self):
        self.calls.append("stop")

    def kill(self):
        self.calls.append("kill")


def started(job, detach=False, as_json=False, see=lambda event: None, since=0.0):
    arguments = argparse.Namespace(detach=detach, json=as_json)
    return command.start_job(lambda: job, see, arguments, since)


def test_a_detached_run_is_named_and_not_waited_for(capsys):
    job = ScriptedRun()
    assert started(job, detach=True, as_json=True) == (None, 0)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"run_id": job.id, "run_dir": job.path}
    assert f"kdlab attach {job.id}" in err
    assert job.calls == []


def test_a_run_is_watched_from_where_it_was_gone_on_with():
    seen = []
    job = ScriptedRun(lambda see: see(Note(message="a")))
    assert started(job, see=seen.append, since=7.0) == (job, 0)
    assert seen == [Note(message="a")]
    assert job.calls == [("wait", 7.0)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_gracefully_and_a_second_one_at_once(capfd, number):
    """SIGTERM too: `timeout 60 kdlab run ...` once left the run's process alive."""
    before = signal.getsignal(number)

    def impatient(see):
        for _ in range(2):
            signal.raise_signal(number)

    job = ScriptedRun(impatient)
    assert started(job) == (job, 2)
    assert job.calls == [("wait", 0.0), "stop", "kill"]
    assert "work under way is saved" in capfd.readouterr().err
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_before_the_start_ends_the_command(capfd, number):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}

    def slow():
        signal.raise_signal(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            command.start_job(slow, print, argparse.Namespace(detach=False, json=False))
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    assert "interrupted before anything was started" in capfd.readouterr().err


def test_a_run_that_was_ended_at_once_says_how_to_go_on(monkeypatch, capsys):
    job = ScriptedRun()
    monkeypatch.setattr(command, "start_job", lambda *about, **more: (job, 2))
    arguments = argparse.Namespace(detach=False, json=False)
    assert command.start_run(lambda: job, arguments) == 130
    assert f"kdlab resume {job.id}" in capsys.readouterr().err
    monkeypatch.setattr(command, "start_job", lambda *about, **more: (None, 0))
    assert command.start_run(lambda: job, arguments) == 0


def test_a_run_is_watched_by_a_process_without_what_its_start_has_loaded(
    monkeypatch, capsys
):
    job, became = ScriptedRun(), []
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "kdlab", "run", "small"])
    monkeypatch.setattr(sys, "argv", ["kdlab", "run", "small"])
    monkeypatch.setattr("os.execv", lambda path, words: became.append(words))
    monkeypatch.setattr(command, "report_run", lambda run, as_json: 0)
    monkeypatch.setitem(sys.modules, "torch", object())
    facts = {"detach": False, "json": True}
    for more in (
        {},
        {"own_process": False},
        {"own_process": True},
    ):  # a caller's process stays what it is
        assert became == []
        arguments = argparse.Namespace(**facts, **more)
        assert command.start_run(lambda: job, arguments, since=7.0) == 0
    (words,) = became
    assert words[:4] == ["python", "-X", "dev", "kdlab"]
    again = cli.parser().parse_args(words[4:])
    assert (again.command, again.run, again.since) == ("attach", job.id, 7.0)
    assert (again.json, again.detach) == (True, False)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT}


@pytest.mark.processes
@pytest.mark.slow("a run's process that is a Python of its own")
def test_a_run_that_is_stopped_before_it_can_hear_is_stopped(
    kdlab_home, elsewhere, spawned
):
    """SIGTERM in its process's first half second once ended a run as lost, exit code 1."""
    run = kdlab.load("smoke/none").start(lambda line: None)
    (child,) = (c for c in psutil.Process().children() if str(run.path) in c.cmdline())
    child.send_signal(signal.SIGTERM)
    run.wait(timeout_s=600)
    assert (run.state, run.status.exit_code) == ("stopped", 130)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.processes
def test_what_watches_a_run_holds_nothing_heavy(run_folder):
    """The watching process once held 330 MB to print lines."""
    run = run_folder()
    watch = (
        "import sys; from kdlab.cli import main;"
        f"assert main(['attach', {run.run_id!r}, '--since', '0']) == 0;"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch], capture_output=True, text=True, check=True
    )
    assert "N-training (no teacher)" in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"torch", "timm", "mlflow", "distributed", "dask", "numpy"} & loaded == set()


def test_results_are_for_stdout_and_words_for_people_are_not(capsys):
    command.show("a table", {"x": 1}, as_json=False)
    assert capsys.readouterr() == ("a table\n", "")
    command.show("a table", {"x": 1}, as_json=True)
    assert capsys.readouterr() == ('{"x": 1}\n', "a table\n")
    command.say("it goes on")
    assert capsys.readouterr() == ("", "it goes on\n")


# Sweeps


class Search:
    """A search that records its starts, and its sweep."""

    def __init__(self):
        self.sweep, self.started = ScriptedRun(), []
        self.sweep.status = RunStatus(state="finished")
        self.sweep.outcome, self.sweep.result = "best: lr=0.1", {"storage": "sqlite:///s"}
        self.sweep.save = lambda name: [f"configs/{name}.yaml"]

    def start(self, study, say):
        self.started.append(study)
        return self.sweep


@pytest.fixture
def searched(monkeypatch):
    """The search that is started, and the words of each call."""
    search, asked = Search(), []
    monkeypatch.setattr(
        "kdlab.tuning.search", lambda name, *words: asked.append((name, words)) or search
    )
    return search, asked


def test_a_sweep_is_searched_for_told_and_its_best_saved(kdlab_cli, searched):
    search, asked = searched
    code, out, err = kdlab_cli(
        "sweep", "quickstart", "keep=all", "--trials", "3", "--study", "mine",
        "--save", "best", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert asked == [("quickstart", ("keep=all", {"trials": 3}))]
    assert search.started == ["mine"]
    assert json.loads(out.splitlines()[-1]) == search.sweep.result
    assert "best: lr=0.1" in err  # stdout is for the object
    assert "saved configs/best.yaml" in err
    assert "optuna-dashboard sqlite:///s" in err


def test_a_sweep_that_was_ended_at_once_says_how_to_go_on(kdlab_cli, searched):
    search, _ = searched

    def impatient(see):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    search.sweep._wait = impatient
    code, out, err = kdlab_cli("sweep", "quickstart")
    assert (code, out) == (130, "")
    assert "the same command continues the study" in err
    assert search.sweep.calls == [("wait", 0.0), "stop", "kill"]
    assert cli.COMMANDS["sweep"] is sweep


def test_a_detached_sweep_is_named(kdlab_cli, searched):
    code, out, _ = kdlab_cli("sweep", "quickstart", "--detach")
    assert code == 0
    assert "kdlab attach" in out


def test_a_name_that_no_config_can_have_is_refused_before_the_search(kdlab_cli, searched):
    search, _ = searched
    code, _, err = kdlab_cli("sweep", "quickstart", "--save", "../best")
    assert code == 2
    assert "../best" in err
    assert search.started == []
