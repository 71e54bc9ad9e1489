"""Restarts of MLflow's writer and the messages about it, with scripted processes."""

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
    """Start followers that end with these codes; raise an exception that is among them."""

    def __init__(self, *ends):
        self.ends, self.started, self.calls = deque(ends), [], []

    def __call__(self, name, followed, log):
        self.calls.append((name, followed, log))
        end = self.ends.popleft()
        if isinstance(end, Exception):
            raise end
        self.started.append(Follower(end))
        return self.started[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Restart the writer without a delay."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)


def followed(tmp_path, *ends, emit=None):
    """Start a tracker whose writers end so; return it, its messages and the followers."""
    messages, followers = [], Followers(*ends)
    tracker = Tracker(
        emit or (lambda event: messages.append(event.message)), "too slow", followers
    )
    tracker.start(tmp_path)
    return tracker, messages, followers


def given_up(tracker):
    """Wait until the tracker's thread has ended by itself."""
    tracker._watcher.join(60)
    assert not tracker._watcher.is_alive()


def test_one_that_writes_all_is_started_once_and_nothing_is_said(tmp_path):
    tracker, messages, followers = followed(tmp_path, 0)
    assert tracker.so_far == PENDING
    tracker.finish()
    assert (messages, tracker.trouble) == ([], None)
    assert followers.calls == [
        ("kdlab.tracking.follow", FollowedJob(folder=tmp_path), tmp_path / "tracking.log")
    ]
    assert followers.started[0].stopped.is_set()


def test_without_a_start_there_is_nothing_to_finish():
    tracker = Tracker(pytest.fail, "too slow", pytest.fail)
    tracker.finish()
    assert tracker.trouble is None
    assert tracker.so_far is None


def test_a_killed_one_is_started_again_and_goes_on(tmp_path):
    tracker, messages, followers = followed(tmp_path, KILLED, -signal.SIGSEGV, 0)
    given_up(tracker)
    tracker.finish()
    assert len(followers.started) == 3
    assert len(set(map(str, followers.calls))) == 1  # each follows the same folder
    assert [words.partition(" (see ")[0] for words in messages] == [
        "The MLflow writer ended by signal 9",
        "The MLflow writer ended by signal 11",
    ]
    assert all("it restarts and continues where it was" in words for words in messages)
    assert tracker.trouble is None  # in the end all was written
    assert all(one.stopped.is_set() for one in followers.started)  # none stays a zombie


def test_one_that_fails_again_and_again_is_given_up_with_the_remedy(tmp_path):
    tracker, messages, followers = followed(tmp_path, *[1] * 6)
    given_up(tracker)
    assert len(followers.started) == 6  # five times it was started again
    assert "with exit code 1" in tracker.trouble
    assert str(tmp_path / "tracking.log") in tracker.trouble
    remedy = "The training is not affected; `kdlab runs --sync` writes the rest"
    assert remedy in tracker.trouble
    assert messages[-1] == tracker.trouble
    assert len(messages) == 6
    tracker.finish()
    assert len(messages) == 6


def test_what_mlflow_refuses_after_the_end_is_not_tried_again(tmp_path):
    messages, followers = [], Followers(1)
    tracker = Tracker(lambda event: messages.append(event.message), "too slow", followers)
    tracker._over.set()  # nothing more happens that it could write
    tracker.start(tmp_path)
    tracker.finish()
    assert "ended with exit code 1" in tracker.trouble
    assert messages == [tracker.trouble]


def test_one_that_is_killed_after_the_end_still_gets_the_rest_written(tmp_path):
    messages, followers = [], Followers(KILLED, 0)
    tracker = Tracker(lambda event: messages.append(event.message), "too slow", followers)
    tracker._over.set()  # a run may end between its death and its watcher's look
    tracker.start(tmp_path)
    tracker.finish()
    assert len(followers.started) == 2
    assert tracker.trouble is None


def test_one_that_is_slow_is_left_and_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    tracker, messages, followers = followed(tmp_path, None)
    tracker.finish()
    assert tracker.trouble == "too slow"
    assert messages == ["too slow"]
    assert followers.started[0].stopped.is_set()


def test_one_that_ends_badly_when_it_is_no_longer_waited_for_is_let_go(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)

    class Late(Follower):
        def wait(self):
            self.stopped.wait()
            return KILLED  # `stop` had to kill it

    tracker = Tracker(lambda event: None, "too slow", lambda *_: Late(None))
    tracker.start(tmp_path)
    tracker.finish()
    given_up(tracker)
    assert tracker.trouble == "too slow"


@pytest.mark.parametrize(
    "error", [OSError(12, "Cannot allocate memory"), ClusterError("ended too early")]
)
def test_one_that_cannot_be_started_stops_no_training(tmp_path, error):
    tracker, messages, _ = followed(tmp_path, error)
    tracker.finish()
    assert tracker.so_far == tracker.trouble == f"MLflow is not written: {error}"
    assert messages == [tracker.trouble]


def test_one_that_cannot_be_started_again_is_said_too(tmp_path):
    tracker, messages, _ = followed(tmp_path, KILLED, ClusterError("no room"))
    given_up(tracker)
    tracker.finish()
    assert tracker.trouble == "MLflow is not written: no room"
    assert len(messages) == 2


def test_where_the_log_takes_nothing_it_is_said_elsewhere(tmp_path, caplog):
    def full(event):
        raise OSError(28, "No space left on device")

    with caplog.at_level(logging.WARNING):
        tracker, _, _ = followed(tmp_path, KILLED, OSError("no"), emit=full)
        given_up(tracker)
    assert tracker.trouble == "MLflow is not written: no"
    assert "not among the events" in caplog.text
    assert "tracking.log" in caplog.text
