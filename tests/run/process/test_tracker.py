"""When MLflow's writer is started again, and what is said of it: its process is a script."""

import logging
import signal
import threading
from collections import deque

import pytest

from kdlab.errors import ClusterError
from kdlab.run.process import tracker as module
from kdlab.run.process.tracker import Tracker
from kdlab.tracking import PENDING
from kdlab.tracking.follow import FollowedJob

KILLED = -signal.SIGKILL


class Follower:
    """A child that ends with a code; None lives until it is stopped."""

    def __init__(self, code):
        self.process, self._code = self, code
        self.stopped = threading.Event()

    def wait(self):
        if self._code is None:
            self.stopped.wait()
            return 0
        return self._code

    def stop(self):
        self.stopped.set()


class Followers:
    """Starts them; what is an error is raised instead."""

    def __init__(self, *ends):
        self.ends, self.started, self.told = deque(ends), [], []

    def __call__(self, name, followed, log):
        self.told.append((name, followed, log))
        end = self.ends.popleft()
        if isinstance(end, Exception):
            raise end
        self.started.append(Follower(end))
        return self.started[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nobody waits for a minute."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)


def followed(tmp_path, *ends, emit=None):
    """A tracker whose processes end so, what it said, and its processes."""
    said, followers = [], Followers(*ends)
    made = Tracker(
        emit or (lambda event: said.append(event.message)), "too slow", followers
    )
    made.start(tmp_path)
    return made, said, followers


def given_up(made):
    """Its thread has come to an end by itself."""
    made._watcher.join(60)
    assert not made._watcher.is_alive()


def test_one_that_writes_all_is_started_once_and_nothing_is_said(tmp_path):
    made, said, followers = followed(tmp_path, 0)
    assert made.so_far == PENDING
    made.finish()
    assert (said, made.trouble) == ([], None)
    assert followers.told == [
        ("kdlab.tracking.follow", FollowedJob(folder=tmp_path), tmp_path / "tracking.log")
    ]
    assert followers.started[0].stopped.is_set()


def test_without_a_start_there_is_nothing_to_finish():
    made = Tracker(pytest.fail, "too slow", pytest.fail)
    made.finish()
    assert made.trouble is None
    assert made.so_far is None


def test_a_killed_one_is_started_again_and_goes_on(tmp_path):
    made, said, followers = followed(tmp_path, KILLED, -signal.SIGSEGV, 0)
    given_up(made)
    made.finish()
    assert len(followers.started) == 3
    assert len(set(map(str, followers.told))) == 1  # each follows the same folder
    assert [words.partition(" (see ")[0] for words in said] == [
        "The MLflow writer ended by signal 9",
        "The MLflow writer ended by signal 11",
    ]
    assert all("it restarts and continues where it was" in words for words in said)
    assert made.trouble is None  # in the end all was written
    assert all(one.stopped.is_set() for one in followers.started)  # none stays a zombie


def test_one_that_fails_again_and_again_is_given_up_with_the_remedy(tmp_path):
    made, said, followers = followed(tmp_path, *[1] * 6)
    given_up(made)
    assert len(followers.started) == 6  # five times it was started again
    assert "with exit code 1" in made.trouble
    assert str(tmp_path / "tracking.log") in made.trouble
    assert (
        "The training is not affected; `kdlab runs --sync` writes the rest" in made.trouble
    )
    assert said[-1] == made.trouble
    assert len(said) == 6
    made.finish()
    assert len(said) == 6


def test_what_mlflow_refuses_after_the_end_is_not_tried_again(tmp_path):
    said, followers = [], Followers(1)
    made = Tracker(lambda event: said.append(event.message), "too slow", followers)
    made._over.set()  # nothing more happens that it could write
    made.start(tmp_path)
    made.finish()
    assert "ended with exit code 1" in made.trouble
    assert said == [made.trouble]


def test_one_that_is_killed_after_the_end_still_gets_the_rest_written(tmp_path):
    said, followers = [], Followers(KILLED, 0)
    made = Tracker(lambda event: said.append(event.message), "too slow", followers)
    made._over.set()  # a run may end between its death and its watcher's look
    made.start(tmp_path)
    made.finish()
    assert len(followers.started) == 2
    assert made.trouble is None


def test_one_that_is_slow_is_left_and_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    made, said, followers = followed(tmp_path, None)
    made.finish()
    assert made.trouble == "too slow"
    assert said == ["too slow"]
    assert followers.started[0].stopped.is_set()


def test_one_that_ends_badly_when_it_is_no_longer_waited_for_is_let_go(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)

    class Late(Follower):
        def wait(self):
            self.stopped.wait()
            return KILLED  # `stop` had to kill it

    made = Tracker(lambda event: None, "too slow", lambda *_: Late(None))
    made.start(tmp_path)
    made.finish()
    given_up(made)
    assert made.trouble == "too slow"


@pytest.mark.parametrize(
    "error", [OSError(12, "Cannot allocate memory"), ClusterError("ended too early")]
)
def test_one_that_cannot_be_started_stops_no_training(tmp_path, error):
    made, said, _ = followed(tmp_path, error)
    made.finish()
    assert made.so_far == made.trouble == f"MLflow is not written: {error}"
    assert said == [made.trouble]


def test_one_that_cannot_be_started_again_is_said_too(tmp_path):
    made, said, _ = followed(tmp_path, KILLED, ClusterError("no room"))
    given_up(made)
    made.finish()
    assert made.trouble == "MLflow is not written: no room"
    assert len(said) == 2


def test_where_the_log_takes_nothing_it_is_said_elsewhere(tmp_path, caplog):
    def full(event):
        raise OSError(28, "No space left on device")

    with caplog.at_level(logging.WARNING):
        made, _, _ = followed(tmp_path, KILLED, OSError("no"), emit=full)
        given_up(made)
    assert made.trouble == "MLflow is not written: no"
    assert "not among the events" in caplog.text
    assert "tracking.log" in caplog.text
