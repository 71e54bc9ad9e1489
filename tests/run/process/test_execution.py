"""The end of a run and its record in the folder: stub work, and disks that may be full."""

import errno
import os
import shutil
import signal
from collections import namedtuple
from dataclasses import dataclass
from socket import create_server

import pytest
from runs_here import Killed
from small_disk import SmallDisk
from tests_support import until

import kdlab
from kdlab.config.home import write_json
from kdlab.errors import BadInput, ClusterError, RunStopped
from kdlab.events.event import Event
from kdlab.events.general import Note
from kdlab.events.log import read_all
from kdlab.events.runs import RunDone
from kdlab.experiment.folder import ENDED, RunFolder
from kdlab.run.process.execution import Job, execute
from kdlab.tracking import PENDING


@dataclass(frozen=True)
class Outcome:
    student_top1: float


class Little(Job):
    """A job of one event, one file and one number."""

    done, late = RunDone, "too slow"

    def __init__(self, folder, error=None):
        super().__init__(folder, lambda: False)
        self.folder, self.error = folder, error

    def main(self):
        self.log.emit(Note(message="at work"))
        assert self.folder.raw_status().state == "running"
        assert (self.folder.path / ".reserve").stat().st_size > 0
        write_json(self.folder.path / "member.json", {})
        if self.error is not None:
            raise self.error
        return Outcome(91.5)

    def resume_hint(self):
        return "Make room, and go on."


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "a-run")
    run.path.mkdir()
    run.write_origin("little", "abc")
    run.write_status(state="starting", created=5.0, seconds=100.0)
    return run


def executed(folder, error=None, **options):
    return execute(folder, lambda: Little(folder, error), **options)


def last(folder) -> Event:
    return read_all(folder.events)[-1]


def test_what_finishes_says_so_in_status_result_and_log(folder):
    assert executed(folder) == 0
    status = folder.raw_status()
    assert (status.state, status.exit_code, status.error) == ("finished", 0, None)
    assert status.result == {"student_top1": 91.5}
    assert status.tracking is None
    assert status.begin <= status.ended
    assert '"student_top1": 91.5' in (folder.path / "result.json").read_text()
    assert (last(folder).state, last(folder).result) == ("finished", status.result)
    assert not (folder.path / ".reserve").exists()


@pytest.mark.parametrize("kind", [RunStopped, KeyboardInterrupt])
def test_a_stop_is_no_failure(folder, capsys, kind):
    assert executed(folder, kind("stopped by the user after step 7")) == 130
    status = folder.raw_status()
    assert (status.state, status.exit_code) == ("stopped", 130)
    assert status.error == "stopped by the user after step 7"
    assert status.seconds > 100.0  # what earlier processes took is in it
    assert last(folder).state == "stopped"
    assert capsys.readouterr().err == ""  # no traceback
    assert not (folder.path / ".reserve").exists()


def test_what_was_stopped_while_it_came_up_begins_nothing(folder):
    def make():
        work = Little(folder, AssertionError("it began"))
        work.stop = lambda: True
        return work

    assert execute(folder, make) == 130
    assert last(folder).state == folder.raw_status().state == "stopped"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BadInput("There is no such card."), 2, "There is no such card."),
        (ClusterError("No teacher."), 1, "No teacher."),
        (ValueError("a shape"), 1, "ValueError: a shape"),
        (OSError(errno.EACCES, "Permission denied"), 1, "PermissionError: [Errno 13] "),
    ],
)
def test_what_fails_says_why_with_a_traceback_in_its_log(
    folder, capsys, error, code, words
):
    assert executed(folder, error) == code
    status = folder.raw_status()
    assert (status.state, status.exit_code) == ("failed", code)
    assert status.error.startswith(words)
    assert status.seconds > 100.0
    assert (last(folder).state, last(folder).error) == ("failed", status.error)
    assert "in main" in capsys.readouterr().err
    assert not (folder.path / ".reserve").exists()
    assert not (folder.path / "result.json").exists()


def test_what_cannot_even_begin_has_a_status_and_no_events(folder):
    def make():
        raise BadInput("The spec is damaged.")

    assert execute(folder, make) == 2
    status = folder.raw_status()
    assert (status.state, status.error) == ("failed", "The spec is damaged.")
    assert status.seconds == 100.0  # of earlier processes
    assert not folder.events.exists()


def test_components_that_nobody_named_are_refused_before_the_work_is_made(folder):
    write_json(
        folder.path / "components.json",
        {"losses/mine": {"source": "raise SystemExit", "sha256": "1"}},
    )
    assert execute(folder, pytest.fail) == 2
    assert "losses/mine" in folder.raw_status().error


def test_an_error_that_passes_leaves_it_to_who_starts_it_again(folder):
    error = RuntimeError("a rank is gone")
    assert executed(folder, error, passes=lambda e: e is error) == 1
    status = folder.raw_status()
    assert (status.state, status.error) == ("starting", None)
    assert status.seconds > 100.0
    assert status.created > 5.0  # it is given its time to begin
    assert [e.KIND for e in read_all(folder.events)] == ["note"]
    assert not (folder.path / ".reserve").exists()


def test_what_kdlab_itself_says_never_passes(folder):
    assert executed(folder, BadInput("No."), passes=lambda e: True) == 2
    assert folder.raw_status().state == "failed"


def test_trouble_with_mlflow_is_kept_beside_the_result(folder):
    def make():
        work = Little(folder)
        work.tracker.trouble = "MLflow was not written"
        return work

    assert execute(folder, make) == 0
    assert folder.raw_status().tracking == "MLflow was not written"


class Silent:
    """A tracker whose MLflow does not answer; `meanwhile` is called in place of waiting."""

    so_far, trouble = PENDING, None

    def __init__(self, meanwhile):
        self.finish = meanwhile


def executed_silently(folder, meanwhile, error=None):
    def make():
        work = Little(folder, error)
        work.tracker = Silent(lambda **how: meanwhile(work))
        return work

    return execute(folder, make)


ENDS = [
    (None, "finished", 0),
    (RunStopped("."), "stopped", 130),
    (ValueError(), "failed", 1),
]


@pytest.mark.parametrize(("error", "state", "code"), ENDS)
def test_it_has_ended_before_it_waits_for_mlflow(folder, error, state, code):
    def slow(work):
        status = folder.raw_status()
        assert (status.state, status.exit_code, status.tracking) == (state, code, PENDING)
        assert status.ended >= status.begin
        assert last(folder).state == state
        work.tracker.trouble = "too slow"

    assert executed_silently(folder, slow, error) == code
    status = folder.raw_status()
    assert (status.state, status.tracking) == (state, "too slow")


def test_asked_to_stop_while_it_waits_for_mlflow_it_has_ended_all_the_same(folder):
    def asked(work):
        raise KeyboardInterrupt

    assert executed_silently(folder, asked) == 0
    status = folder.raw_status()
    assert (status.state, status.tracking) == ("finished", PENDING)


@pytest.mark.parametrize(("error", "state", "code"), ENDS)
def test_killed_while_it_waits_for_mlflow_it_has_ended_all_the_same(
    folder, error, state, code
):
    def killed(work):
        raise Killed

    with pytest.raises(Killed):
        executed_silently(folder, killed, error)
    status = folder.status()
    assert (status.state, status.exit_code, status.tracking) == (state, code, PENDING)
    assert status.result == (None if error else {"student_top1": 91.5})


def test_a_disk_that_takes_no_word_of_mlflow_changes_nothing(folder, monkeypatch, capsys):
    disk = SmallDisk(monkeypatch, WRITES)

    def fills(work):
        disk.room = 0

    assert executed_silently(folder, fills) == 0
    assert disk.refused == 1
    assert (folder.raw_status().state, folder.raw_status().tracking) == (
        "finished",
        PENDING,
    )


@pytest.mark.processes
@pytest.mark.slow("a run's process with torch, and that of its tracker")
def test_a_run_that_sigkill_meets_while_it_waits_for_mlflow_is_finished(
    kdlab_home, elsewhere
):
    with create_server(("127.0.0.1", 0)) as mute:  # it takes connections and says nothing
        uri = f"http://127.0.0.1:{mute.getsockname()[1]}"
        asked = {"tracking": {"enabled": True, "uri": uri}, "train.epochs": 1}
        run = kdlab.load("smoke/none", asked).start(lambda line: None)
        until(lambda: run.folder.raw_status().state in ENDED)
        os.killpg(run.folder.process().pid, signal.SIGKILL)
    until(lambda: not run.folder.alive())
    assert last(run.folder).KIND == "run_done"
    assert run.state == "finished"
    assert run.result["student_top1"] > 0
    assert run.result["tracking_error"] == PENDING


def test_who_ends_the_process_itself_is_not_held_back(folder):
    with pytest.raises(SystemExit):
        executed(folder, SystemExit(3))
    assert folder.raw_status().state == "running"  # lost, once its process is gone


# A disk that is full


# Reserve, the log's first line, "running", a note, a file of the work, result.json,
# the last event; the status of a finished run has the reserve's room.
WRITES, BEFORE_WORK = 7, 1


@pytest.mark.parametrize("writes", range(1, WRITES))
def test_whichever_write_meets_a_full_disk_the_folder_says_so(folder, monkeypatch, writes):
    disk = SmallDisk(monkeypatch, writes)
    assert executed(folder) == 1
    assert disk.refused == 1
    status = folder.raw_status()
    assert (status.state, status.exit_code) == ("failed", 1)
    full = "The disk did not take what was written: [Errno 28] No space left on device. "
    if writes <= BEFORE_WORK:
        assert status.error.startswith(full + "This process had not begun")
        assert status.error.endswith("kdlab resume a-run")
        assert status.seconds == 100.0
    else:
        assert status.error == full + "Make room, and go on."
        assert status.seconds > 100.0
        assert (last(folder).state, last(folder).error) == ("failed", status.error)


def test_with_room_for_all_it_finishes(folder, monkeypatch):
    disk = SmallDisk(monkeypatch, WRITES)
    assert (executed(folder), disk.refused) == (0, 0)
    assert folder.raw_status().state == "finished"


def test_without_room_for_the_reserve_the_status_of_before_stays(folder, monkeypatch):
    SmallDisk(monkeypatch, 0)
    assert executed(folder) == 1
    assert (
        folder.raw_status().state == "starting"
    )  # and lost, as soon as its process is gone


@pytest.mark.parametrize("writes", range(1, WRITES))
def test_where_others_take_the_reserves_room_it_ends_all_the_same(
    folder, monkeypatch, writes, capsys
):
    SmallDisk(monkeypatch, writes, gives=False)
    assert executed(folder) == 1
    assert folder.raw_status().state == ("starting" if writes < 3 else "running")
    assert "No space left on device" in capsys.readouterr().err


def test_a_log_that_takes_no_traceback_changes_nothing(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("traceback.print_exc", full)
    assert executed(folder, ValueError("a shape")) == 1
    assert folder.raw_status().error == "ValueError: a shape"


@pytest.mark.parametrize(("free", "named"), [(1 << 10, True), (1 << 30, False)])
def test_a_child_that_met_the_full_disk_is_understood(folder, monkeypatch, free, named):
    """The child ends without a reason; the little room left on the disk tells it."""
    usage = namedtuple("Usage", "free")(free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    executed(folder, ClusterError("rank 1 has ended"))
    error = folder.raw_status().error
    assert ("The disk did not take" in error) == named
    assert "rank 1 has ended" in error
