"""Both ends of a child's pipes, without a process between them."""

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from kdlab.codec import MessageError
from kdlab.errors import ClusterError
from kdlab.supervision import children, lifeline
from kdlab.supervision.children import Child, announce, configured, lower_priority, tail
from kdlab.supervision.heartbeat import HeartbeatFile


class NoProcess:
    """A `subprocess.Popen` that starts nothing: the test reads and writes its other ends."""

    started = None

    def __init__(self, command, *, stderr, pass_fds, env, stdin, stdout):
        assert (stdin, stdout) == (subprocess.PIPE, subprocess.PIPE)
        self.command, self.pass_fds, self.env = command, pass_fds, env
        self.pid, self.code, self.killed, self.obeys = 1 << 30, None, False, True
        heard, written = os.pipe()
        read, out = os.pipe()
        self.stdin, self.stdout = os.fdopen(written, "wb"), os.fdopen(read, "rb")
        self.heard, self.out = os.fdopen(heard, "rb"), os.fdopen(out, "wb", buffering=0)
        type(self).started = self

    def say(self, text):
        self.out.write(text.encode())

    def die(self, code):
        self.code = code
        self.out.close()
        self.heard.close()

    def poll(self):
        return self.code

    def wait(self, timeout=None):
        if self.code is None and not self.obeys:
            raise subprocess.TimeoutExpired(self.command, timeout)
        self.code = 0 if self.code is None else self.code
        return self.code

    def kill(self):
        self.killed, self.code = True, -9


@dataclass(frozen=True)
class Config:
    n: int


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A child, and what stands for its process."""
    monkeypatch.setattr(subprocess, "Popen", NoProcess)
    handle = Child("a.module", Config(3), tmp_path / "logs/a.log", environment={"X": "1"})
    yield handle, NoProcess.started
    NoProcess.started.obeys = True
    handle.stop()


def test_it_is_started_with_a_lifeline_and_told_its_configuration(child):
    _, process = child
    assert process.command == [sys.executable, "-m", "kdlab.supervision", "a.module"]
    assert process.env["X"] == "1"
    assert json.loads(process.heard.readline()) == {"n": 3}


def test_messages_come_whole_and_never_wait(child):
    handle, process = child
    assert handle.messages() == []
    process.say('{"a": 1}\n{"b":')
    assert handle.messages() == [{"a": 1}]
    process.say(" 2}\n")
    process.die(1)
    assert handle.messages() == [{"b": 2}]
    assert handle.messages() == []
    handle.stop()
    assert handle.messages() == []  # its pipe is closed


def test_an_order_is_a_line_and_lost_where_nobody_listens(child):
    handle, process = child
    process.heard.readline()
    assert handle.send(order="save", step=4)
    assert json.loads(process.heard.readline()) == {"order": "save", "step": 4}
    process.die(1)
    assert not handle.send(order="save")
    handle.stop()
    assert not handle.send(order="save")


def test_its_answer_is_its_first_line(child):
    handle, process = child
    process.say('{"port": 8}\n')
    assert handle.answer(5) == {"port": 8}
    assert handle.alive()
    assert handle.pid == process.pid


def test_who_ends_while_starting_is_quoted(child):
    handle, process = child
    handle.log.write_text("first\n" * 20 + "the reason\n")
    process.die(3)
    with pytest.raises(ClusterError) as caught:
        handle.answer(5)
    message = str(caught.value)
    assert "a.module ended while starting (exit code 3)" in message
    assert message.endswith("  the reason")
    assert message.count("first") == 14


def test_who_was_killed_is_said_by_which_signal(child):
    handle, process = child
    process.die(-9)
    assert "a.module died (Killed, exit code -9). End of" in handle.exit_report("died")


def test_who_says_nothing_in_time_is_given_up(child):
    handle, _ = child
    with pytest.raises(
        ClusterError, match=r"did not come up within 0 s\. End of .*\n  \(empty\)"
    ):
        handle.answer(0)


def test_one_that_ended_before_it_was_configured(tmp_path, monkeypatch):
    class Gone(NoProcess):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.die(7)

    monkeypatch.setattr(subprocess, "Popen", Gone)
    with pytest.raises(ClusterError, match=r"before it was configured \(exit code 7\)"):
        Child("a.module", Config(3), tmp_path / "a.log")


def test_who_does_not_go_is_killed(child):
    handle, process = child
    process.obeys = False
    handle.stop(0.1)
    assert process.killed
    handle.stop(0.1)


def test_the_end_of_a_log(tmp_path):
    log = tmp_path / "log"
    assert tail(log) == "  (no log)"
    log.write_bytes(b"")
    assert tail(log) == "  (empty)"
    log.write_bytes(b"a\nb\xff\nc\n")
    assert tail(log, 2) == "  b\ufffd\n  c"


def test_who_serves_a_trainer_gives_way(monkeypatch):
    nicer = []
    monkeypatch.setattr(os, "nice", nicer.append)
    lower_priority()
    assert nicer == [5]


@contextmanager
def inside(monkeypatch):
    """This process stands where a child stands: (writes to it, reads from it, exit codes).

    Not a fixture: between a test and its fixtures pytest puts its own standard output back.
    """
    saved = [os.dup(fd) for fd in (0, 1)]
    (mine, to_it), (from_it, its) = os.pipe(), os.pipe()
    os.dup2(mine, 0)
    os.dup2(its, 1)
    ends = queue.Queue()
    monkeypatch.setattr(os, "_exit", ends.put)
    monkeypatch.setattr(children, "_parent", 1)
    monkeypatch.setattr(lifeline, "followed", threading.Event())
    pipe = os.fdopen(to_it, "wb", buffering=0)
    try:
        yield pipe, from_it, ends
    finally:
        pipe.close()
        for fd, was in enumerate(saved):
            os.dup2(was, fd)
        for fd in (*saved, mine, its, from_it):
            os.close(fd)


def test_a_child_is_configured_answers_obeys_and_ends_with_its_parent(monkeypatch):
    orders = queue.Queue()
    with inside(monkeypatch) as (pipe, from_it, ends):
        pipe.write(b'{"n": 3}\n')
        assert configured(Config, orders.put) == Config(3)
        assert lifeline.followed.is_set()
        announce(port=8)
        assert json.loads(os.read(from_it, 99)) == {"port": 8}
        assert os.path.sameopenfile(1, 2)  # what it prints goes into its log
        pipe.write(b'{"order": "a"}\n{"ord')
        pipe.write(b'er": "b"}\n')
        assert [orders.get(timeout=10) for _ in "ab"] == [{"order": "a"}, {"order": "b"}]
        assert ends.empty()
        pipe.close()
        assert ends.get(timeout=10) == 0


def test_another_configuration_is_refused(monkeypatch):
    with inside(monkeypatch) as (pipe, *_):
        pipe.write(b'{"m": 3}\n')
        with pytest.raises(MessageError):
            configured(Config)


def test_a_module_that_nobody_configures_says_so(monkeypatch):
    with inside(monkeypatch) as (pipe, *_):
        pipe.close()
        with pytest.raises(SystemExit, match="needs a configuration"):
            configured(Config)


def test_the_first_lifeline_ends_a_process_whose_parent_is_gone(monkeypatch):
    mine, theirs = os.pipe()
    monkeypatch.setattr(lifeline, "_STDIN", mine)
    monkeypatch.setattr(lifeline, "followed", threading.Event())
    ends = []

    def end(code):
        ends.append(code)
        lifeline.followed.set()  # else it would go on: nothing has ended

    monkeypatch.setattr(os, "_exit", end)
    os.write(theirs, b"left for who is configured")
    os.close(theirs)
    lifeline._watch()
    assert ends == [1]
    assert os.read(mine, 99) == b"left for who is configured"
    os.close(mine)


def test_the_first_lifeline_lets_go_once_the_pipe_is_followed(monkeypatch):
    monkeypatch.setattr(lifeline, "followed", threading.Event())
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended"))
    lifeline.followed.set()
    lifeline._watch()


def test_a_rank_beats_in_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", NoProcess)
    rank = Child("a.rank", Config(3), tmp_path / "log", tmp_path / "pulse")
    process = NoProcess.started
    config = json.loads(process.heard.readline())
    assert config == {"n": 3, "pulse": str(tmp_path / "pulse")}
    HeartbeatFile(tmp_path / "pulse").beat(generation=2, step=40)
    assert rank.sign()[:2] == (2, 40)
    assert rank.exit_code is None
    assert not rank.is_stopped()  # there is no process of this number
    process.pid = os.getpid()
    assert not rank.is_stopped()
    rank.kill()
    assert (process.killed, rank.exit_code) == (True, -9)
    rank.stop()
