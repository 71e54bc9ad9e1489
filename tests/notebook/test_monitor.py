"""The monitor without a page: widgets follow a real run and steer it."""

import numpy as np
import pytest
from tests_support import until

import kdlab
from kdlab.events.log import select
from kdlab.notebook.monitor import Monitor
from kdlab.notebook.runs_together import RunsTogether


@pytest.fixture
def monitor(kdlab_home, elsewhere):
    run = kdlab.load("smoke/none", "tracking.enabled=false", "train.epochs=100000").start()
    made = Monitor(run)
    sent = []
    made.page.send = lambda message, buffers: sent.append((message, buffers))
    made.sent = sent
    made.show()
    yield made
    run.kill()
    made.close()


@pytest.mark.processes
def test_buttons_and_sliders_reach_the_run(monitor):
    run = monitor.run
    until(lambda: monitor.watch.step > 3)
    until(lambda: monitor.controls.sliders.children)
    named = {d.slider.description: d for d in monitor.controls.sliders.children}
    assert set(named) == {"lr_factor"}  # there are no soft labels, so no loss of them
    assert named["lr_factor"].slider.min > 0
    named["lr_factor"].slider.value = 0.5
    (steered,) = until(lambda: list(select(run.folder.events, "steered")))
    assert steered["values"]["lr_factor"] == pytest.approx(0.5, abs=0.02)
    monitor.controls.pause.click()
    until(lambda: monitor.watch.paused)
    until(lambda: monitor.controls.pause.description == "go on")
    monitor.controls.pause.click()
    until(lambda: not monitor.watch.paused)
    monitor.controls.stop.click()
    until(lambda: run.state == "stopped")
    until(lambda: monitor.controls.stop.disabled)
    assert monitor.page.state["state"] == "stopped"


@pytest.mark.processes
def test_points_travel_as_bytes_and_a_new_page_gets_all_of_them(monitor):
    until(lambda: monitor.watch.step > 3)
    until(lambda: [m for m, _ in monitor.sent if m["kind"] == "add"])
    adds = [(m, b) for m, b in monitor.sent if m["kind"] == "add"]
    assert all(len(b[0]) % 24 == 0 for _, b in adds)
    assert max(len(b[0]) for _, b in adds) < 2000  # bytes of one update
    monitor.run.kill()
    until(lambda: not monitor._thread.is_alive())  # from now on nothing is added
    monitor.sent.clear()
    monitor.page._hear(monitor.page, {"kind": "hello"}, [])
    message, (raw,) = next((m, b) for m, b in monitor.sent if m["kind"] == "reset")
    rows = np.frombuffer(raw).reshape(-1, 3)
    losses = [k for k, curve in enumerate(message["curves"]) if curve["panel"] == "loss"]
    assert len(rows[rows[:, 0] == losses[0]]) == len(monitor.watch.curves["loss", "loss"])


@pytest.mark.processes
def test_without_a_view_that_says_hello_it_draws_svg(monitor):
    until(lambda: "<img" in monitor.still.value)
    until(lambda: monitor.page.layout.display == "none")
    monitor.page._hear(monitor.page, {"kind": "hello"}, [])
    until(lambda: not monitor.still.value)


@pytest.mark.processes
def test_closing_it_leaves_the_run_alone(monitor):
    until(lambda: monitor.watch.step > 3)
    monitor.close()
    assert monitor.run.state == "running"


@pytest.mark.processes
def test_a_refused_order_is_said_and_not_sent(monitor):
    until(lambda: monitor.watch.step > 3)
    monitor.controls.add.click()
    assert "no teachers of its own" in monitor.message.value
    assert not (monitor.run.path / "control.jsonl").exists()


@pytest.mark.processes
def test_several_runs_are_one_view(kdlab_home, elsewhere):
    runs = [
        kdlab.load("smoke/none", "tracking.enabled=false", f"train.lr={lr}").start().wait()
        for lr in (0.1, 0.2)
    ]
    view, sent = RunsTogether(runs), []
    view.page.send = lambda message, buffers: sent.append(message)
    view._greeted()
    assert {curve["run"] for curve in sent[0]["curves"]} == {run.id for run in runs}
    still = view.end()
    assert all(run.id in still for run in runs)
    assert view.page.state["state"] == "finished"
    view.close()
