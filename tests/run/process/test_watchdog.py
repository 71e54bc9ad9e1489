"""Decisions of the watchdog when its child ends, with scripted forks, waits and clock."""

import fcntl
import signal

import pytest

from kdlab.config import yaml_text
from kdlab.events.log import read_all
from kdlab.experiment.folder import RunFolder
from kdlab.run.process.watchdog import WatchdogParent, watched
from kdlab.testing.scripted import FakeClock

KILLED, CRASHED = -signal.SIGKILL, -signal.SIGSEGV


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that trains, with two restarts allowed within a minute."""
    run = RunFolder(tmp_path / "a-run")
    run.path.mkdir()
    spec = {"restart": {"most": 2, "within_s": 60.0}}
    (run.path / "spec.yaml").write_text(yaml_text.dump(spec))
    run.write_status(state="running")
    return run


@pytest.fixture
def clock():
    return FakeClock(now=100.0)


@pytest.fixture
def keeper(folder, clock):
    return WatchdogParent(folder.path, now=clock)


def read_texts(folder):
    return [event.text() for event in read_all(folder.events)]


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_what_a_run_says_of_itself_is_the_last_word(keeper, folder, code):
    """A restart would end the same way; the watchdog exits with the code of its child."""
    assert not keeper.starts_again(code)
    assert keeper.code == code
    assert not folder.events.exists()


@pytest.mark.parametrize("code", [-signal.SIGINT, -signal.SIGTERM])
def test_who_is_told_to_end_is_not_started_again(keeper, folder, code):
    assert not keeper.starts_again(code)
    assert keeper.code == 128 - code  # as a shell has it
    assert folder.raw_status().state == "running"


def test_a_killed_child_is_started_again_and_the_log_says_why(keeper, folder):
    assert keeper.starts_again(KILLED)
    assert folder.raw_status().state == "starting"
    folder.write_status(state="running")
    assert keeper.starts_again(CRASHED)
    assert read_texts(folder) == [
        "the run's process was killed by SIGKILL; it restarts from its newest checkpoint (1 of 2)",
        "the run's process was killed by SIGSEGV; it restarts from its newest checkpoint (2 of 2)",
    ]


def test_after_so_many_restarts_it_is_given_up_with_the_remedy(keeper, folder):
    assert [keeper.starts_again(KILLED) for _ in range(3)] == [True, True, False]
    status = folder.raw_status()
    assert (status.state, status.exit_code, keeper.code) == ("failed", 1, 1)
    assert status.error.startswith(
        "The run's process was killed by SIGKILL (the kernel, short of memory?), after 2 "
        "restarts within 60 s: it is not started again (restart.most)."
    )
    assert "continue with: kdlab resume a-run" in status.error
    *_, last = read_all(folder.events)
    assert (last.KIND, last.state, last.error) == (
        "run_done", "failed", status.error
    )  # fmt: skip


def test_a_crash_is_not_put_down_to_memory(keeper, folder):
    for _ in range(3):
        keeper.starts_again(CRASHED)
    assert "SIGSEGV, after 2 restarts" in folder.raw_status().error


def test_restarts_of_long_ago_do_not_count(keeper, clock):
    for _ in range(6):  # one every 31 s: never more than two within a minute
        clock.advance(31.0)
        assert keeper.starts_again(KILLED)
    clock.advance(1.0)
    assert not keeper.starts_again(KILLED)


def test_a_spec_that_names_no_restarts_gets_none(keeper, folder):
    (folder.path / "spec.yaml").write_text(yaml_text.dump({"train": {}}))
    assert not keeper.starts_again(KILLED)
    assert "after 0 restarts" in folder.raw_status().error


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_a_child_that_dies_after_its_last_word_has_ended(keeper, folder, state):
    folder.write_status(state=state, result={"student_top1": 90.0})
    assert not keeper.starts_again(KILLED)
    assert folder.raw_status().state == state
    assert not folder.events.exists()


def test_a_child_that_let_go_of_a_run_which_somebody_resumed_is_not_started_again(
    folder, clock
):
    folder.write_status(state="running")  # the word of the one who has it now
    path = folder.path / "lock"
    with path.open("w") as watchdog_lock, path.open("r+") as resumer_lock:
        keeper = WatchdogParent(folder.path, watchdog_lock.fileno(), now=clock)
        fcntl.flock(resumer_lock, fcntl.LOCK_EX)
        assert not keeper.starts_again(-signal.SIGSEGV)
        assert folder.raw_status().state == "running"
        fcntl.flock(resumer_lock, fcntl.LOCK_UN)
        assert keeper.starts_again(-signal.SIGSEGV)


def test_on_a_full_disk_it_starts_again_and_leaves_the_words_to_the_child(
    keeper, folder, monkeypatch
):
    def full(self, **facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_status", full)
    assert keeper.starts_again(KILLED)


# The loop around it


class Ended(Exception):
    """Raised in place of `os._exit`: the process is gone."""


class Processes:
    """Children that end as scripted: each with a code, or with what a function returns."""

    def __init__(self, *ends):
        self.ends, self.forked, self.sent = list(ends), 0, []

    def fork(self):
        self.forked += 1
        return 1000 + self.forked

    def waitpid(self, pid, options):
        assert (pid, options) == (1000 + self.forked, 0)
        end = self.ends.pop(0)
        if callable(end):
            end = end()
        return pid, -end if end < 0 else end << 8  # as the kernel writes them down

    def kill(self, pid, number):
        self.sent.append((pid, number))

    def leave(self, code):
        raise Ended(code)


@pytest.fixture
def signals():
    """Restore the signal handlers of this process afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def run_watchdog(folder, processes, **others):
    """Watch these processes; return the watchdog and its exit code."""
    parts = {
        name: getattr(processes, name) for name in ("fork", "waitpid", "kill", "leave")
    }
    keeper = WatchdogParent(folder.path, **(parts | {"now": FakeClock()} | others))
    with pytest.raises(Ended) as left:
        watched(keeper)
    return keeper, left.value.args[0]


def test_it_forks_until_a_child_comes_to_its_end(folder, signals):
    processes = Processes(KILLED, CRASHED, 0)
    _, code = run_watchdog(folder, processes)
    assert (code, processes.forked) == (0, 3)


def test_it_leaves_with_one_when_it_gives_up(folder, signals):
    processes = Processes(KILLED, KILLED, KILLED)
    _, code = run_watchdog(folder, processes)
    assert (code, processes.forked) == (1, 3)


def test_a_signal_is_passed_on_and_the_child_has_the_last_word(folder, signals):
    def interrupted():
        signal.raise_signal(signal.SIGTERM)
        return 130

    processes = Processes(KILLED, interrupted)
    keeper, code = run_watchdog(folder, processes)
    assert processes.sent == [(1002, signal.SIGTERM)]
    assert (code, processes.forked, keeper.stopping) == (130, 2, True)


def test_a_child_that_is_killed_while_it_stops_is_not_started_again(folder, signals):
    def killed_in_the_end():
        signal.raise_signal(signal.SIGINT)
        return KILLED

    processes = Processes(killed_in_the_end)
    _, code = run_watchdog(folder, processes)
    assert (code, processes.forked) == (128 + signal.SIGKILL, 1)


def test_a_stop_between_two_children_reaches_the_next_once(folder, signals):
    """The stop comes while the watchdog decides: one child is gone, the next not there."""
    sent = []

    def kill(pid, number):
        sent.append((pid, number))
        if pid == 1001:
            raise ProcessLookupError

    def interrupted():
        signal.raise_signal(signal.SIGINT)
        return 0.0

    processes = Processes(KILLED, 130)
    _, code = run_watchdog(folder, processes, kill=kill, now=interrupted)
    assert (code, sent) == (130, [(1001, signal.SIGINT), (1002, signal.SIGINT)])


def test_a_stop_while_it_forks_is_passed_on_once(folder, signals):
    """A second SIGINT would order the child to end everything at once."""
    signal.signal(signal.SIGINT, lambda *_: pytest.fail("the wrong one heard it"))
    processes = Processes(130)

    def interrupted():
        signal.raise_signal(signal.SIGINT)  # blocked until both know who is who
        return processes.fork()

    _, code = run_watchdog(folder, processes, fork=interrupted)
    assert (code, processes.sent) == (130, [(1001, signal.SIGINT)])
