"""Targets of chaos in a run of another process: from its events and its processes."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest
from tests_support import event, hold

import kdlab
from kdlab.config import yaml_text
from kdlab.errors import BadInput, SpecError
from kdlab.events.general import Note
from kdlab.events.log import EventLog, read_all
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle import chaos as module
from kdlab.run.handle.chaos import OtherTargets
from kdlab.run.handle.run import Run

FILES = {"ca": "ca.pem"}


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "a-run")
    folder.path.mkdir()
    folder.write_status(state="running")
    (folder.path / "spec.yaml").write_text(yaml_text.dump({"workers": None}))
    let_go = hold(folder)
    yield Run(folder)
    let_go()


@pytest.fixture
def happens(run):
    log = EventLog(run.folder.events)
    return lambda kind, **facts: log.emit(event(kind, **facts))


@pytest.fixture
def pools(monkeypatch):
    """Teachers of pools by address, for callers with the credentials of the pool."""
    known = {}

    def by_pid(address, files):
        assert files is FILES
        return known[address]

    monkeypatch.setattr(module, "by_pid", by_pid)
    monkeypatch.setattr(
        module, "load_credentials", lambda address: FILES if address else None
    )
    return known


def test_teachers_are_those_of_the_newest_pool(run, happens, pools):
    targets = OtherTargets(run)
    assert (targets.address(), targets.teachers()) == ("", [])
    pools |= {"tls://a:1": {7: "one"}, "tls://a:2": {8: "two", 9: "three"}}
    happens("pool_ready", address="tls://a:1", teachers=[])
    assert targets.teachers() == ["one"]
    happens("pool_ready", address="tls://a:2", teachers=[])  # of a resumed run
    assert targets.teachers() == ["two", "three"]


def test_ranks_are_those_of_the_newest_generation_and_local_models(run, happens):
    targets = OtherTargets(run)
    happens("generation_started", number=1, ranks={"rank-0": 11, "rank-1": 12})
    happens("generation_started", number=2, ranks={"rank-0": 11, "rank-1": 13})
    assert [(t.name, t.pid) for t in targets.ranks()] == [("rank-0", 11), ("rank-1", 13)]
    happens("member_started")
    assert targets.ranks() == []
    happens("worker_started", worker=0, pid=20)
    happens("worker_started", worker=1, pid=21)
    happens("worker_started", worker=0, pid=22)  # again
    assert {t.name: t.pid for t in targets.ranks()} == {"worker-0": 22, "worker-1": 21}


def test_ranks_on_other_machines_are_left_alone(run, happens):
    (run.path / "spec.yaml").write_text(
        yaml_text.dump({"workers": {"address": "tcp://b:1"}})
    )
    happens("generation_started", number=1, ranks={"rank-0": os.getpid()})
    assert OtherTargets(run).ranks() == []


class AProcess:
    """The part of `psutil.Process` that chaos reads."""

    def __init__(self, pid, words, children=()):
        self.pid, self.words, self._children = pid, words, children

    def children(self, recursive):
        assert recursive
        return self._children

    def cmdline(self):
        if self.words is None:
            raise psutil.NoSuchProcess(self.pid)
        return self.words


def test_processes_are_its_watchdog_and_all_below_it(run, monkeypatch):
    python = [sys.executable, "-m"]
    below = [
        AProcess(2, [*python, "kdlab.run.process.child", "folder"]),
        AProcess(3, [*python, "kdlab.tracking.follow"]),
        AProcess(4, []),  # a zombie
        AProcess(5, None),  # it ended in between
        AProcess(6, [*python, "kdlab.cluster.teachers.teacher_process"]),
    ]
    watchdog = AProcess(1, [*python, "kdlab.run.process.child", "folder"], below)
    monkeypatch.setattr(RunFolder, "process", lambda folder: watchdog)
    targets = OtherTargets(run)
    assert [t.pid for t in targets.processes()] == [1, 2, 3, 6]
    assert [t.pid for t in targets.main()] == [2]
    assert [t.pid for t in targets.helpers()] == [3]


def test_a_run_that_is_gone_has_none(tmp_path):
    gone = Run(RunFolder(tmp_path))
    assert OtherTargets(gone).processes() == OtherTargets(gone).main() == []


def test_a_teacher_is_added_while_it_runs_and_has_a_pool(run, happens, monkeypatch):
    started = []
    monkeypatch.setattr(
        module.subprocess, "Popen", lambda command, **_: started.append(command) or command
    )
    targets = OtherTargets(run)
    targets.add_teacher()
    assert started == []
    happens("pool_ready", address="tls://a:1", teachers=[])
    targets.add_teacher()
    assert started == [
        [sys.executable, "-m", "kdlab", "teacher", "tls://a:1", "--threads", "1",
         "--patience", "60"]
    ]  # fmt: skip
    assert targets.joined == started
    run.folder.write_status(state="finished", result={})
    targets.add_teacher()
    assert len(started) == 1


def saved(run, step):
    folder = run.path / "members/none/seed0/checkpoints" / f"step_{step:09d}"
    folder.mkdir(parents=True)
    for name in ("state.json", "state.safetensors"):
        (folder / name).write_text("x")
    return [folder / "state.json", folder / "state.safetensors"]


def test_the_newest_checkpoint_is_damaged_if_another_is_whole(run):
    targets = OtherTargets(run)
    assert targets.files("damage_status") == [run.path / "status.json"]
    assert targets.files("damage_checkpoint") == []
    saved(run, 5)
    assert targets.files("damage_checkpoint") == []  # the run could not go on
    newest = saved(run, 10)
    assert targets.files("damage_checkpoint") == newest
    assert targets.files("damage_checkpoint") == []  # the newest is damaged already
    newest = saved(run, 15)
    assert targets.files("damage_checkpoint") == newest


# From a notebook


@pytest.fixture
def trouble(monkeypatch):
    """Record the arguments of each `ChaosRunner` in place of starting its thread."""
    asked = []
    monkeypatch.setattr(
        module, "ChaosRunner", lambda *args: asked.append(args) or SimpleNamespace()
    )
    return asked


def test_it_is_given_what_the_pool_of_this_run_lets_in(run, happens, pools, trouble):
    """Chaos uses the certificates of the pool: who can read them may kill its teachers."""
    happens("pool_ready", address="tls://a:1", teachers=[])
    heard = []
    kdlab.chaos(run, report=heard.append, kill_teacher=1, every_s=2.0, events=3)
    ((spec, targets, tell, files),) = trouble
    assert (spec.kill_teacher, spec.every_s, spec.events) == (1, 2.0, 3)
    assert (targets.run, files) == (run, FILES)
    tell(Note(message="hit"))
    assert [e.text() for e in heard] == ["hit"]
    assert read_all(run.folder.events)[-1].text() == "hit"


def test_only_a_running_one_is_hit_and_only_as_chaos_can(run, trouble):
    with pytest.raises(SpecError, match="kill_everybody"):
        kdlab.chaos(run, kill_everybody=1)
    run.folder.write_status(state="finished", result={})
    with pytest.raises(BadInput, match="is finished; chaos needs a running one"):
        kdlab.chaos(run, kill_teacher=1)
    assert trouble == []
