"""All writers: a failure loses nothing, and little is written again."""

import json

import pytest
from tests_support import event

from kdlab.events.log import EventLog
from kdlab.tracking.event_writer import EventWriter

URI = "sqlite:////nowhere/mlflow.db"


class Collecting(EventWriter):
    """Collect kinds of events, store them when flushed; fail at one kind if asked to."""

    def __init__(self, folder, fails_at=None):
        super().__init__(folder, {"of its own": 1})
        self.fails_at, self.collected, self.written = fails_at, [], []

    def write(self, event):
        if self.fails_at == event.KIND:
            raise OSError("the disk is full")
        self.collected.append(event.KIND)

    def flush(self):
        self.written += self.collected
        self.collected = []

    def discard(self):
        self.collected = []


@pytest.fixture
def log(tmp_path):
    return EventLog(tmp_path / "events.jsonl")


def say(log, *kinds, **facts):
    for kind in kinds:
        log.emit(event(kind, **facts))


def saved_state(folder):
    return json.loads((folder / "tracking.json").read_text())


def test_each_event_is_written_once_also_by_the_next_process(log, tmp_path):
    say(log, "run_started", tracking_uri=URI)
    say(log, "note", "step_logged")
    first = Collecting(tmp_path)
    assert first.step() == 3
    assert first.step() == 0
    assert first.written == ["run_started", "note", "step_logged"]
    assert saved_state(tmp_path)["uri"] == URI
    assert saved_state(tmp_path)["of its own"] == 1
    say(log, "warned")
    second = Collecting(tmp_path)
    assert second.step() == 1
    assert second.written == ["warned"]


def test_what_failed_is_read_again_from_the_same_place(log, tmp_path):
    say(log, "run_started", tracking_uri=URI)
    writer = Collecting(tmp_path, fails_at="step_logged")
    writer.step()
    before = saved_state(tmp_path)["offset"]
    say(log, "note", "step_logged", "warned")
    with pytest.raises(OSError, match="disk is full"):
        writer.step()
    assert writer.collected == []  # it is collected again
    assert saved_state(tmp_path)["offset"] == before
    writer.fails_at = None
    assert writer.step() == 3
    assert writer.written == ["run_started", "note", "step_logged", "warned"]
    assert saved_state(tmp_path)["offset"] > before


def test_nothing_is_kept_of_a_look_that_found_nothing(log, tmp_path):
    Collecting(tmp_path).step()
    assert not (tmp_path / "tracking.json").exists()


def test_without_tracking_it_is_done_at_once_and_writes_nothing(log, tmp_path):
    say(log, "run_started", tracking_uri=None)
    say(log, "note")
    writer = Collecting(tmp_path)
    assert writer.step() == 2
    assert (writer.done, writer.written) == (True, [])
    say(log, "run_started", tracking_uri=URI)  # resumed, and tracked from here on
    say(log, "note")
    writer.step()
    assert (writer.done, writer.written) == (False, ["run_started", "note"])


@pytest.mark.parametrize("end", ["run_done", "sweep_done"])
def test_it_is_over_when_the_last_event_says_so(log, tmp_path, end):
    writer = Collecting(tmp_path)
    assert not writer.has_ended()
    say(log, "run_started", tracking_uri=URI)
    assert not writer.has_ended()
    say(log, end)
    assert writer.has_ended()  # also where it cannot be written
    assert writer.written == []
    say(log, "run_started", tracking_uri=URI)
    assert not writer.has_ended()


def test_what_was_done_goes_on_when_it_was_resumed(log, tmp_path):
    (tmp_path / "tracking.json").write_text('{"done": true, "uri": "x"}')
    writer = Collecting(tmp_path)
    assert writer.done
    writer.resume()
    assert not writer.done
