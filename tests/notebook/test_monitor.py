"""The monitor without a page: it follows what a run writes, and takes orders to it."""

import signal

import numpy as np
import pytest
from tests_support import until
from written_runs import WrittenRun

import kdlab
from kdlab.changes.change import GoOn, Pause, SaveCheckpoint, SetValues
from kdlab.changes.tunable import Tunable
from kdlab.config import Range
from kdlab.events.log import select
from kdlab.notebook.monitor import Monitor
from kdlab.notebook.runs_together import RunsTogether
from kdlab.testing.scripted import FakeClock

LR = Tunable(name="lr_factor", value=1.0, range=Range(gt=0))


@pytest.fixture
def run(elsewhere):
    return WrittenRun(tunables=[LR]).begin().train(5)


@pytest.fixture
def clock():
    return FakeClock(100.0)


@pytest.fixture
def monitor(run, clock):
    """A monitor that updates at each call of `after`, half a second later by its clock."""
    monitor = Monitor(run.handle, now=clock)
    monitor.sent = []
    monitor.page.send = lambda message, buffers: monitor.sent.append((message, buffers))

    def look(seconds=0.5):
        clock.advance(seconds)
        monitor.update()

    monitor.after = look
    yield monitor
    monitor.close()


@pytest.fixture
def interrupts():
    """The signals that the run's process got; it is this process."""
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGINT, before)


def press(monitor, do, **more):
    """Send an order as the page does."""
    monitor.page._receive(monitor.page, {"kind": "order", "do": do, **more}, [])


def shown(monitor):
    """Return (words on its buttons, dials by name, newest answer)."""
    facts = monitor.page.controls
    dials = {dial["name"]: dial["value"] for dial in facts.get("dials", ())}
    return facts["buttons"], dials, facts["reply"][2]


@pytest.mark.usefixtures("filled_here")
def test_what_is_pressed_and_dragged_are_orders(monitor, run, interrupts):
    monitor.after()
    assert shown(monitor) == (["pause", "checkpoint", "stop"], {"lr_factor": 1.0}, "")
    press(monitor, "set", values={"lr_factor": 0.5})
    press(monitor, "checkpoint")
    press(monitor, "pause")
    change, save, pause = run.changes()
    assert isinstance(change, SetValues)
    assert change.set == {"lr_factor": 0.5}
    assert isinstance(save, SaveCheckpoint)
    assert (type(pause), pause.member) == (Pause, "none/seed0")
    press(monitor, "stop")
    assert interrupts == [signal.SIGINT]
    monitor.after()
    assert shown(monitor)[1:] == ({"lr_factor": 0.5}, "requested: stop")


def test_the_controls_follow_the_run(monitor, run):
    run.say("settings_changed", step=5, values={"lr_factor": 0.25})
    run.say("paused", step=5)
    monitor.after()
    buttons = ["go on", "checkpoint", "stop", "back to the last good checkpoint"]
    assert shown(monitor)[:2] == (buttons, {"lr_factor": 0.25})
    press(monitor, "go on")
    assert [type(order) for order in run.changes()] == [GoOn]
    run.say("continued", step=5)
    monitor.after()
    assert not monitor.watch.paused
    assert shown(monitor)[0][0] == "pause"
    run.end("stopped")
    monitor.after()
    still = monitor.end()
    assert shown(monitor)[:2] == ([], {})
    assert monitor.page.state["state"] == "stopped"
    assert "stopped" in still


def test_what_was_set_can_be_taken_back_step_by_step(monitor, run):
    for value in (3.0, 50.0):
        run.say("settings_changed", step=5, values={"lr_factor": value})
    monitor.after()
    for before, left in ((3.0, "lr_factor = 1"), (1.0, "")):
        assert monitor.page.controls["undo"] == f"lr_factor = {before:g}"
        press(monitor, "undo")
        assert run.changes()[-1].set == {"lr_factor": before}
        run.say("settings_changed", step=6, values={"lr_factor": before})
        monitor.after()
        assert monitor.page.controls["undo"] == left
    press(monitor, "undo")
    assert "Nothing to undo" in shown(monitor)[2]


def test_another_training_has_its_own_numbers(monitor, run):
    run.say("settings_changed", step=5, values={"lr_factor": 3.0})
    monitor.after()
    assert shown(monitor)[1] == {"lr_factor": 3.0}
    run.begin("none/seed1")
    monitor.after()
    assert shown(monitor)[1] == {"lr_factor": 1.0}
    assert monitor.page.controls["undo"] == ""


def test_teachers_that_serve_can_be_chosen(monitor, run):
    monitor.after()
    assert monitor.page.controls["teachers"] is None
    for name in ("teacher-0", "teacher-1"):
        run.say("teacher_joined", name=name, t_t=9.0, device="cpu")
    run.say("teacher_lost", teacher="teacher-0", why="killed", resent=0)
    monitor.after()
    assert monitor.page.controls["teachers"] == ["teacher-1"]


def test_a_run_that_was_lost_has_said_nothing_and_is_shown_as_lost(monitor, run):
    run.let_go()
    assert "lost" in monitor.end()
    assert monitor.page.state["state"] == "lost"


def test_facts_come_twice_a_second_and_points_at_once(monitor, run):
    run.train(1)
    monitor.after(0.1)
    assert [m["kind"] for m, _ in monitor.sent] == ["add"]
    before = monitor.page.state
    run.train(1)
    monitor.after(0.1)
    assert [m["kind"] for m, _ in monitor.sent] == ["add", "add"]
    assert monitor.page.state == before
    monitor.after(0.5)
    assert monitor.page.state["done"] == before["done"] + 2


def test_points_travel_as_bytes_and_a_new_page_gets_all_of_them(monitor, run):
    monitor.after()
    for _ in range(3):
        run.train(4)
        monitor.after()
    adds = [(m, b) for m, b in monitor.sent if m["kind"] == "add"]
    assert len(adds) == 3
    assert all(len(b[0]) % 24 == 0 for _, b in adds)
    assert max(len(b[0]) for _, b in adds) < 2000  # bytes of one update
    monitor.sent.clear()
    monitor.page._receive(monitor.page, {"kind": "hello"}, [])
    message, (raw,) = next((m, b) for m, b in monitor.sent if m["kind"] == "reset")
    rows = np.frombuffer(raw).reshape(-1, 3)
    losses = [k for k, curve in enumerate(message["curves"]) if curve["panel"] == "loss"]
    mine = rows[rows[:, 0] == losses[0]]
    assert len(mine) == len(monitor.watch.curves["loss", "loss"]) == 17
    assert mine[-1].tolist() == [losses[0], 17.0, 1 / 17]


def test_without_a_view_that_says_hello_it_draws_svg(monitor, run):
    monitor.after(1.5)
    assert (monitor.still.value, monitor.page.layout.display) == ("", "")
    monitor.after(1.0)  # its patience is over
    first = monitor.still.value
    assert "<img" in first
    assert monitor.page.layout.display == "none"
    run.train(3)
    monitor.after(1.0)
    assert monitor.still.value == first  # pictures are drawn less often
    monitor.after(1.0)
    assert monitor.still.value != first
    monitor.page._receive(monitor.page, {"kind": "hello"}, [])
    monitor.after()
    assert (monitor.still.value, monitor.page.layout.display) == ("", "")


@pytest.mark.parametrize(("renderer", "drawn"), [("svg", True), ("canvas", False)])
def test_a_renderer_that_was_asked_for_is_not_waited_for(run, clock, renderer, drawn):
    monitor = Monitor(run.handle, renderer, now=clock)
    clock.advance(9.0)
    monitor.update()
    assert ("<img" in monitor.still.value) == drawn
    monitor.close()


def test_closing_it_leaves_the_run_alone(monitor, run, interrupts):
    monitor.show()
    monitor.close()
    assert monitor.run.state == "running"
    assert run.changes() == []
    assert interrupts == []


def test_a_refused_order_is_said_and_not_sent(monitor, run):
    press(monitor, "add teacher")
    assert "no teachers of its own" in shown(monitor)[2]
    press(monitor, "set", values={"lr_factor": -5.0})
    assert "lr_factor: is -5, must be > 0" in shown(monitor)[2]
    press(monitor, "set", values={"batch": 5.0})
    assert "batch cannot be set" in shown(monitor)[2]
    assert shown(monitor)[1] == {"lr_factor": 1.0}
    assert not (monitor.run.path / "control.jsonl").exists()


def test_it_ends_with_the_run_and_leaves_a_picture(run, clock):
    monitor = Monitor(run.end().handle, hz=1000.0, now=clock)
    monitor.follow()
    monitor.wait_for_snapshot(60.0)
    assert not monitor._thread.is_alive()
    assert shown(monitor)[0] == []
    monitor.close()


def test_what_stops_the_monitor_is_said_on_the_page(run, monkeypatch):
    monkeypatch.setattr("threading.excepthook", lambda arguments: None)
    monitor = Monitor(run.handle, hz=1000.0)

    def broken():
        raise ZeroDivisionError("of nothing")

    monitor.update = broken
    monitor.follow()
    monitor.wait_for_snapshot(60.0)
    assert "The monitor failed; the run continues" in shown(monitor)[2]
    monitor.close()


@pytest.fixture
def two(elsewhere):
    """Two runs that ended after different numbers of steps."""
    return [
        WrittenRun(path=elsewhere / "runs" / name).begin().train(steps).end()
        for name, steps in (("one", 3), ("other", 8))
    ]


def test_several_runs_are_one_view(two):
    runs = [run.handle for run in two]
    view, sent = RunsTogether(runs), []
    view.page.send = lambda message, buffers: sent.append(message)
    view.on_hello()
    assert {curve["run"] for curve in sent[0]["curves"]} == {run.id for run in runs}
    still = view.end()
    assert all(run.id in still for run in runs)
    assert view.page.state["state"] == "finished"
    view.close()


def test_several_runs_have_ended_when_the_last_one_has(two):
    first = two[0]
    first.folder.write_status(state="running")  # one that lives
    view = RunsTogether([run.handle for run in two])
    assert view._watched.state == "running"
    first.folder.write_status(state="failed")
    assert view._watched.state == "failed"
    assert repr(view) == "RunsTogether(one, other)"
    view.close()


def test_a_curve_that_begins_later_is_a_new_set_of_curves(two):
    first, _ = two
    view, sent = RunsTogether([run.handle for run in two]), []
    view.page.send = lambda message, buffers: sent.append(message)
    first.train(1)
    view.update()
    first.say("epoch_done", epoch=1, validation_top1=50.0)
    view.update()
    assert [message["kind"] for message in sent] == ["add", "reset"]
    assert "top-1 on validation" in {curve["panel"] for curve in sent[1]["curves"]}
    view.close()


@pytest.mark.processes
@pytest.mark.usefixtures("filled_here")
def test_buttons_and_dials_reach_the_run(kdlab_home, elsewhere):
    run = kdlab.load("smoke/none", "tracking.enabled=false", "train.epochs=100000").start()
    monitor = Monitor(run)
    monitor.page.send = lambda message, buffers: None
    monitor.show()
    try:
        reach(monitor, run)
    finally:
        run.kill()
        monitor.close()


def reach(monitor, run):
    until(lambda: monitor.watch.now.step > 3)
    until(lambda: shown(monitor)[1])
    assert shown(monitor)[1] == {"lr_factor": 1.0}  # no soft labels, so no loss of them
    press(monitor, "set", values={"lr_factor": 0.5})
    (settings_changed,) = until(lambda: list(select(run.folder.events, "settings_changed")))
    assert settings_changed.values == {"lr_factor": 0.5}
    until(lambda: monitor.page.controls["undo"] == "lr_factor = 1")
    press(monitor, "undo")
    until(lambda: len(list(select(run.folder.events, "settings_changed"))) == 2)
    press(monitor, "pause")
    until(lambda: monitor.watch.paused)
    until(lambda: shown(monitor)[0][0] == "go on")
    press(monitor, "go on")
    until(lambda: not monitor.watch.paused)
    press(monitor, "stop")
    until(lambda: run.state == "stopped")
    until(lambda: not shown(monitor)[0])
    assert monitor.page.state["state"] == "stopped"
