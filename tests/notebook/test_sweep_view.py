"""The live view of a sweep without a page: it follows a log that the test writes."""

import signal

import pytest
from small_sweeps import TRAINED, searched
from tests_support import event, hold

from kdlab.events.log import EventLog
from kdlab.experiment.folder import sweeps_folder
from kdlab.notebook import live_view, sweep_view
from kdlab.notebook.sweep_view import SweepView
from kdlab.tuning.folder import SweepFolder
from kdlab.tuning.handle import Sweep


class WrittenSweep:
    """A sweep with its view, what the page was sent and how often shares were asked for."""

    def __init__(self):
        search = searched(TRAINED)
        folder = SweepFolder(sweeps_folder() / "seen")
        folder.path.mkdir(parents=True)
        search._write(folder, {})
        folder.write_status(state="running")
        self.let_go = hold(folder)
        self.folder, self.log = folder, EventLog(folder.events)
        self.say("sweep_started", study="seen", spec=search.spec.to_dict(),
                 objectives=["validation_top1"], directions=["maximize"])  # fmt: skip
        self.sent, self.asked = [], 0
        self.view = SweepView(Sweep(folder), lambda: "<b>drawn</b>", self.shares)
        self.view.page.send = lambda message, buffers: self.sent.append(message)

    def shares(self):
        self.asked += 1
        return {"train.lr": 0.75, "train.momentum": 0.25}

    def say(self, kind, **facts):
        self.log.emit(event(kind, member=None, **facts))

    def trial(self, number, top1):
        values = {"train.lr": 0.1 + number / 100, "train.momentum": 0.5}
        self.say("trial_started", number=number, values=values, why="suggested")
        self.say(
            "trial_done", number=number, state="complete", seconds=0.5, ended=number + 1,
            of_trials=4, set=values, values_found={"validation_top1": top1}, feasible=True,
        )  # fmt: skip
        self.view.update()

    @property
    def page(self):
        return self.view.page.state


@pytest.fixture
def sweep(elsewhere):
    sweep = WrittenSweep()
    yield sweep
    sweep.view.close()


def test_trials_are_rows_and_points_as_they_end(sweep):
    assert sweep.page["trials"] == []
    sweep.trial(0, 50.0)
    sweep.trial(1, 60.0)
    assert [row[0] for row in sweep.page["trials"][1:]] == ["1", "0"]
    assert [message["kind"] for message in sweep.sent] == ["reset", "add"]
    dots = {curve["name"] for curve in sweep.sent[0]["curves"] if curve["dots"]}
    assert dots == {"complete"}  # a trial is a dot, the best so far a line


def test_a_page_that_says_hello_gets_all_of_it(sweep):
    sweep.trial(0, 50.0)
    sweep.sent.clear()
    sweep.view.page._receive(sweep.view.page, {"kind": "hello"}, [])
    assert [message["kind"] for message in sweep.sent] == ["reset"]


def test_shares_are_asked_for_now_and_then_and_at_the_end(sweep, monkeypatch):
    monkeypatch.setattr(sweep_view, "_IMPORTANCE_S", 1e9)
    sweep.trial(0, 50.0)
    sweep.trial(1, 60.0)
    before = sweep.asked
    sweep.trial(2, 61.0)
    assert sweep.asked == before  # not after each trial
    monkeypatch.setattr(sweep_view, "_IMPORTANCE_S", -1.0)
    sweep.trial(3, 62.0)
    sweep.view.update()
    assert sweep.asked == before + 1  # nor twice for the same ones
    monkeypatch.setattr(sweep_view, "_IMPORTANCE_S", 1e9)
    sweep.say("sweep_done", state="finished")
    sweep.trial(4, 63.0)
    assert sweep.asked == before + 2
    assert 0.75 in [share for _, share in sweep.page["importance"]]


@pytest.mark.usefixtures("filled_here")
def test_the_button_stops_the_sweep_and_rests_when_it_has_ended(sweep):
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        sweep.view.page._receive(sweep.view.page, {"kind": "order", "do": "stop"}, [])
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert sweep.view.page.controls["buttons"] == ["stop"]
    sweep.folder.write_status(state="stopped")
    sweep.view.update()
    assert sweep.view.page.controls["buttons"] == []
    assert sweep.view.end() == "<b>drawn</b>"
    assert sweep.page["state"] == "stopped"


# What all live views do


def test_in_marimo_the_page_is_the_value_of_the_cell(sweep, monkeypatch):
    shown = []
    monkeypatch.setattr(live_view, "in_marimo", lambda: True)
    monkeypatch.setattr(live_view, "display", shown.append)
    assert sweep.view.show() is sweep.view
    assert shown == []
    assert sweep.view._display_() is sweep.view.page


def test_elsewhere_it_displays_itself_and_leaves_a_picture(sweep, monkeypatch):
    class Handle:
        def update(self, page):
            shown.append(page.data)

    shown = []

    def display(what, display_id=False):
        shown.append(what)
        return Handle() if display_id else None

    monkeypatch.setattr(live_view, "display", display)
    sweep.folder.write_status(state="finished", result={})
    sweep.view._every_s = 0.001
    sweep.view.show()
    sweep.view.wait_for_snapshot(60.0)
    assert shown[0] is sweep.view.box
    assert shown[-1] == '<div class="kd-still" data-of="seen"><b>drawn</b></div>'
