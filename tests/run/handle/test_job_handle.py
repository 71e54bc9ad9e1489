"""A run from outside: state, result, events and signals, from folders written by hand."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tests_support import hold, until

from kdlab.errors import BadInput, NotFoundError, RunFailed, RunStopped
from kdlab.events.general import Note
from kdlab.events.log import EventLog
from kdlab.experiment import folder as folder_module
from kdlab.experiment.folder import RunFolder
from kdlab.run.handle import job_handle as module
from kdlab.run.handle.job_handle import JobHandle, _fills, in_a_notebook, in_marimo
from kdlab.run.handle.run import Run
from kdlab.tracking import PENDING


@pytest.fixture
def folder(tmp_path):
    """The folder of a running run whose process is this one."""
    run = RunFolder(tmp_path / "runs" / "a-run")
    run.path.mkdir(parents=True)
    run.write_origin("mine", "abc")
    run.write_status(state="running")
    return run


@pytest.fixture(autouse=True)
def let_go(folder):
    """End the run's process, as far as its folder says: release its lock."""
    done = hold(folder)
    yield done
    done()


@pytest.fixture
def time_passes(monkeypatch):
    """Replace sleeping by the calls that a test passes; each takes one second."""

    def install(*happens):
        rest, now = list(happens), [0.0]

        def sleep(seconds):
            assert rest, "it waits for what never comes"
            now[0] += 1.0
            rest.pop(0)()

        monkeypatch.setattr(module.time, "sleep", sleep)
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        return rest

    return install


# What became of it


def test_a_finished_run_has_a_result_with_what_mlflow_lacks(folder):
    folder.write_status(
        state="finished", result={"student_top1": 91.0}, tracking="not written"
    )
    assert Run(folder).result == {"student_top1": 91.0, "tracking_error": "not written"}


def test_who_waits_sees_what_came_of_mlflow(folder, time_passes):
    result = {"student_top1": 91.0}
    folder.write_status(state="finished", result=result, tracking=PENDING)

    def mlflow_is_slow():
        EventLog(folder.events).emit(Note(message="slow"))
        folder.write_status(tracking="slow")

    rest, seen = time_passes(mlflow_is_slow), []
    run = Run(folder)
    assert run.state == "running"
    assert run.wait(seen.append).result == result | {"tracking_error": "slow"}
    assert [event.message for event in seen] == ["slow"]
    assert rest == []


def test_nobody_waits_for_mlflow_with_a_process_that_is_gone(folder, let_go, time_passes):
    result = {"student_top1": 91.0}
    folder.write_status(state="finished", result=result, tracking=PENDING)
    let_go()
    time_passes()
    assert Run(folder).wait().result == result | {"tracking_error": PENDING}


def test_a_stopped_run_says_how_it_goes_on(folder):
    folder.write_status(state="stopped", exit_code=130)
    with pytest.raises(
        RunStopped, match="stopped by the user; its checkpoints are kept"
    ) as caught:
        _ = Run(folder).result
    assert str(caught.value).endswith("kdlab resume a-run")


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (1, 1), (None, 1)])
def test_a_failed_run_says_why_where_and_what_to_do(folder, code, expected):
    folder.write_status(state="failed", exit_code=code, error="The loss is nan.")
    with pytest.raises(RunFailed, match=r"Run a-run failed: The loss is nan\.") as caught:
        _ = Run(folder).result
    assert str(folder.log) in str(caught.value)
    assert str(caught.value).endswith("kdlab resume a-run")
    assert caught.value.exit_code == expected  # 2: its input was wrong


def test_a_reason_that_says_how_it_goes_on_is_enough(folder):
    folder.write_status(
        state="failed", error="No room. Make some, then\n    kdlab resume a-run"
    )
    with pytest.raises(RunFailed) as caught:
        _ = Run(folder).result
    assert str(caught.value).count("kdlab resume a-run") == 1


def test_a_failure_without_a_reason_is_no_riddle(folder):
    folder.write_status(state="failed")
    with pytest.raises(RunFailed, match="no reason was recorded"):
        _ = Run(folder).result


def test_a_run_whose_process_is_gone_is_lost(folder, let_go):
    folder.write_status(error="of an earlier session")
    let_go()
    run = Run(folder)
    assert run.state == "lost"
    with pytest.raises(RunFailed, match="killed from outside or the machine went down"):
        _ = run.result


@pytest.mark.parametrize("state", ["starting", "running"])
def test_one_that_has_not_ended_has_no_result_yet(folder, state):
    folder.write_status(state=state)
    with pytest.raises(NotFoundError, match=f"a-run is {state}; it has no result yet"):
        _ = Run(folder).result


def test_last_words_that_come_while_it_is_looked_at_count(folder, let_go, monkeypatch):
    """The run may end between the read of its status and the check of its process."""
    alive = RunFolder.alive

    def ends(folder):
        monkeypatch.setattr(RunFolder, "alive", alive)
        folder.write_status(state="finished", result={})
        let_go()
        return folder.alive()

    monkeypatch.setattr(RunFolder, "alive", ends)
    assert folder.status().state == "finished"


def test_a_damaged_status_is_no_result(folder, let_go):
    let_go()
    (folder.path / "status.json").write_text("{")
    with pytest.raises(
        RunFailed, match=r"a-run cannot be read: status\.json in .* damaged"
    ):
        _ = Run(folder).result


# Events


def texts(events):
    return [event.text() for event in events]


def test_events_are_those_of_now_unless_they_are_followed(folder, time_passes):
    log = EventLog(folder.events)
    log.emit(Note(message="one"))
    run = Run(folder)
    assert texts(run.events()) == ["one"]

    def last_words():
        log.emit(Note(message="three"))
        folder.write_status(state="finished", result={})
        log.emit(Note(message="after the status"))

    rest = time_passes(lambda: log.emit(Note(message="two")), lambda: None, last_words)
    assert texts(run.events(follow=True)) == ["one", "two", "three", "after the status"]
    assert not rest


def test_waiting_sees_each_event_once_until_the_end(folder, time_passes):
    log, seen = EventLog(folder.events), []
    time_passes(
        lambda: log.emit(Note(message="one")),
        lambda: log.emit(Note(message="two")),
        lambda: folder.write_status(state="stopped"),
    )
    run = Run(folder)
    assert run.wait(seen.append) is run
    assert texts(seen) == ["one", "two"]


def test_waiting_ends_when_the_process_is_gone(folder, let_go, time_passes):
    time_passes(let_go)
    assert Run(folder).wait(lambda event: None).state == "lost"


def test_waiting_gives_up_in_time_and_the_run_goes_on(folder, time_passes):
    time_passes(*[lambda: None] * 4)
    run = Run(folder)
    with pytest.raises(TimeoutError, match="a-run has not ended after 3 s"):
        run.wait(lambda event: None, timeout_s=3)
    assert run.state == "running"


def test_live_views_draw_the_end(folder):
    settled = []

    class View:
        def wait_for_snapshot(self, timeout_s):
            settled.append(timeout_s)

    folder.write_status(state="finished", result={})
    run = Run(folder)
    run._shown = [View(), object()]  # as `live` sets it
    run.wait()
    assert settled == [10.0]


def test_a_live_view_is_a_notebooks_and_lines_a_terminals(folder, monkeypatch, capsys):
    folder.write_status(state="stopped")
    EventLog(folder.events).emit(Note(message="something happened"))
    run = Run(folder)
    assert run.live() is run
    assert "something happened" in "".join(capsys.readouterr())
    assert run._shown == []
    for where in ("in_a_notebook", "in_marimo"):
        with monkeypatch.context() as patch:
            patch.setattr(module, where, lambda: True)
            patch.setitem(module.viewers, "run", lambda *asked: asked)
            assert run.live("svg") == (run, "svg")
    assert run._shown == [(run, "svg")] * 2


def test_an_interrupt_of_the_lines_leaves_the_run_alone(folder, monkeypatch, time_passes):
    def interrupt():
        raise KeyboardInterrupt

    time_passes(interrupt)
    run = Run(folder)
    assert run.live() is run
    assert run.state == "running"


def test_this_is_no_notebook():
    assert not in_a_notebook()
    assert not in_marimo()


def test_what_every_kind_says_for_itself_is_asked_of_it(folder):
    bare = JobHandle(folder)
    assert (bare.id, bare.name, bare.path) == ("a-run", "a-run", folder.path)
    with pytest.raises(NotImplementedError):
        bare.lines()
    folder.write_status(state="failed")
    with pytest.raises(NotImplementedError):
        bare._result_or_raise()


# Signals


@pytest.fixture
def sent(monkeypatch):
    """Record signals in place of sending them; this process counts as the run's."""
    signals = []
    monkeypatch.setattr(module, "_fills", lambda process, folder: True)
    monkeypatch.setattr(os, "kill", lambda *asked: signals.append(("one", *asked)))
    monkeypatch.setattr(os, "killpg", lambda *asked: signals.append(("group", *asked)))
    return signals


def test_a_stop_asks_its_process_and_a_kill_ends_the_group(folder, sent, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)  # it does not end by that
    run = Run(folder)
    run.stop()
    run.kill()
    pid = os.getpid()
    assert sent == [("one", pid, signal.SIGINT), ("group", pid, signal.SIGKILL)]


def test_what_was_killed_by_its_user_is_stopped_and_keeps_its_checkpoints(
    folder, let_go, sent, monkeypatch
):
    monkeypatch.setattr(os, "killpg", lambda *asked: let_go())
    run = Run(folder)
    run.kill()
    assert (run.state, run.status.exit_code) == ("stopped", 130)
    with pytest.raises(RunStopped, match="kdlab resume a-run"):
        _ = run.result


@pytest.mark.parametrize("state", ["finished", "failed", "stopped"])
def test_what_has_ended_is_sent_nothing(folder, let_go, sent, state):
    """Its pid may belong to another process by now."""
    folder.write_status(state=state, result={})
    run = Run(folder)
    run.stop()
    run.kill()
    folder.write_status(state="running")
    let_go()
    run.stop()
    run.kill()
    assert sent == []


def test_what_ends_meanwhile_is_no_error(folder, let_go, monkeypatch):
    def gone(pid, number):
        let_go()
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    monkeypatch.setattr(module, "_fills", lambda process, folder: True)
    Run(folder).stop()


def test_a_process_that_is_none_of_its_own_gets_no_signal(folder, monkeypatch):
    """A folder of another user may name any pid: `kdlab stop` interrupted its process."""
    monkeypatch.setattr(os, "kill", lambda *asked: pytest.fail("a stranger was signalled"))
    monkeypatch.setattr(os, "killpg", lambda *asked: pytest.fail("a stranger was killed"))
    for send in (Run(folder).stop, Run(folder).kill):
        with pytest.raises(BadInput, match="which is none of this folder"):
            send()


@pytest.mark.processes
@pytest.mark.parametrize("folders", ["a-run", "another-run"])
def test_the_process_of_a_folder_was_started_for_it(tmp_path, folders):
    """The command line of the process names the folder."""
    words = [sys.executable, "-c", "input()", "kdlab.run.process.child", tmp_path / "a-run"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as started:
        process = psutil.Process(started.pid)
        until(lambda: "input()" in process.cmdline())
        assert _fills(process, tmp_path / folders) == (folders == "a-run")
        # A folder that was moved, with a link in its place, is the same.
        (tmp_path / "a-run").mkdir()
        (tmp_path / "a-run").rename(tmp_path / "moved")
        (tmp_path / "a-run").symlink_to(tmp_path / "moved")
        assert _fills(process, tmp_path / "moved")
        started.stdin.close()


def test_a_holder_that_does_not_say_who_it_is_gets_no_signal(folder, sent, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    (folder.path / "lock").write_text("")
    with pytest.raises(BadInput, match="nobody here"):
        Run(folder).stop()
    assert sent == []


def test_one_that_has_just_been_started_is_waited_for(folder, sent, time_passes):
    lock = folder.path / "lock"
    pid = lock.read_text()
    lock.write_text("")
    time_passes(lambda: lock.write_text(pid))
    Run(folder).stop()
    assert sent == [("one", os.getpid(), signal.SIGINT)]


def test_what_has_no_process_yet_is_sent_nothing(tmp_path, sent):
    folder = RunFolder(tmp_path)
    folder.write_status(state="starting", created=time.time())
    assert folder.status().state == "starting"
    Run(folder).stop()
    assert sent == []


# Who holds it


def test_who_asks_keeps_nobody_from_taking_it(folder, let_go):
    """Each caller of `alive` takes a shared lock for a moment."""
    let_go()
    asks = threading.Thread(target=lambda: [folder.alive() for _ in range(2000)])
    asks.start()
    while asks.is_alive():
        with folder.held():
            assert folder.alive()
    assert not folder.alive()


def test_another_one_is_told_who_has_it(folder, monkeypatch):
    monkeypatch.setattr(folder_module, "PATIENCE_S", 0.0)
    with (
        pytest.raises(BadInput, match="a-run is already running; watch it"),
        folder.held(),
    ):
        pytest.fail("two have it")


def test_a_lock_is_no_link_and_no_pipe(folder, let_go, tmp_path):
    """A folder from another user could have a file emptied, or block a command for ever."""
    let_go()
    (tmp_path / "letter").write_text("dear friend")
    lock = folder.path / "lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "letter")
    with pytest.raises(BadInput, match="lock in"), folder.held():
        pytest.fail("it is somebody's letter")
    assert (tmp_path / "letter").read_text() == "dear friend"
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(BadInput, match="lock in"), folder.held():
        pytest.fail("it is a pipe")
    assert not folder.alive()
    assert folder.process() is None


HOLDS = """
import os, sys
from pathlib import Path
from kdlab.run.process.stop_request import end_with, fill
folder, lock = Path(sys.argv[2]), int(sys.argv[1])
fill(folder, lock)
end_with(folder, lock)
if os.fork() == 0:  # as a loader of data does
    os.setsid()
sys.stdout.write(f"{os.getpid()}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_lock_that_was_handed_on_goes_with_its_process_alone(folder, let_go):
    """A process that it forked may live on, and does not hold the folder."""
    let_go()
    with folder.held() as lock:
        started = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(lock), str(folder.path)],
            pass_fds=[lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    pids = {int(started.stdout.readline()) for _ in range(2)}
    assert folder.process().pid == started.pid
    started.kill()
    started.wait()
    until(lambda: not folder.alive())
    (forked,) = pids - {started.pid}
    assert psutil.pid_exists(forked)
    started.stdin.close()
    until(lambda: not psutil.pid_exists(forked))
    started.stdout.close()


def test_a_deleted_folder_is_not_made_anew_by_who_holds_it(folder):
    shutil.rmtree(folder.path)
    with pytest.raises(FileNotFoundError, match="was deleted meanwhile"):
        folder.write_status(state="running")
    assert not folder.path.exists()


def test_a_start_that_fails_leaves_ctrl_c_as_it_was(tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(FileNotFoundError):  # no folder for its log
        module.spawn(RunFolder(tmp_path / "gone"), {}, 0)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
