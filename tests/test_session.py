"""Functions for notebooks and scripts: each calls the room that does the work."""

import importlib

import pytest
from written_runs import WrittenRun

import kdlab
from kdlab import session
from kdlab.errors import BadInput, NotFoundError
from kdlab.run.handle.job_handle import viewers


class Started:
    """A stand-in for what can be started: a search, or an experiment with photos."""

    def __init__(self):
        self.calls = []

    def start(self, *arguments):
        self.calls.append(arguments)
        return "started"


@pytest.fixture
def stand_in(monkeypatch):
    """Replaces a function of a module; returns its calls."""

    def put(place, answer=None):
        calls = []
        module, _, name = place.rpartition(".")
        monkeypatch.setattr(
            importlib.import_module(module), name,
            lambda *words, **options: calls.append((words, options)) or answer,
        )  # fmt: skip
        return calls

    return put


def test_all_of_it_stands_at_the_top_of_kdlab():
    for name in (
        "attach_sweep",
        "chaos",
        "distil",
        "follow_demand",
        "live",
        "look_at",
        "page",
        "sweep",
    ):
        assert getattr(kdlab, name) is getattr(session, name)
        assert getattr(session, name).__doc__
    assert kdlab.registry is session.registry


def test_photos_become_wishes_and_a_run(stand_in):
    experiment = Started()
    calls = stand_in("kdlab.run.new.experiment_for", experiment)
    say = [].append
    run = session.distil("photos", "train.epochs=2", student="x", weights="w.pt", say=say)
    assert run == "started"
    ((wishes, overrides, lines), _) = calls[0]
    assert (wishes.data, wishes.student, wishes.teacher) == ("photos", "x", None)
    assert (wishes.weights, wishes.minutes) == ("w.pt", session.MINUTES)
    assert (overrides, lines) == (("train.epochs=2",), say)
    assert experiment.calls == [(say,)]


def test_a_sweep_is_searched_and_started(stand_in):
    search = Started()
    calls = stand_in("kdlab.tuning.search", search)
    assert session.sweep("quickstart", {"trials": 2}, study="mine", say=print) == "started"
    assert calls == [(("quickstart", {"trials": 2}), {})]
    assert search.calls == [("mine", print)]


@pytest.mark.parametrize(
    ("call", "place", "words", "options"),
    [
        (lambda: session.look_at("photos", "size=64", say=print),
         "kdlab.run.outputs.data_sheet.look_at", ("photos", "size=64"),
         {"say": print, "closely": False}),
        (lambda: session.follow_demand("cluster", most=8),
         "kdlab.cluster.deployed_pool.follow_demand", ("cluster",), {"most": 8}),
        (session.attach_sweep, "kdlab.tuning.attach_sweep", ("last",), {}),
        (lambda: session.chaos(5, kill_teacher=1),
         "kdlab.run.handle.chaos.chaos", (5,), {"kill_teacher": 1}),
        (lambda: viewers["experiment"]("quickstart", {"a": 1}),
         "kdlab.notebook.builder.Builder", ("quickstart", {"a": 1}), {}),
    ],
)  # fmt: skip
def test_it_hands_over_what_it_was_given(stand_in, call, place, words, options):
    calls = stand_in(place, "found")
    assert call() == "found"
    assert calls == [(words, options)]


class View:
    def show(self):
        return "shown"


@pytest.mark.parametrize(
    ("viewer", "words", "place"),
    [
        ("run", ("run", "svg"), "kdlab.notebook.monitor.Monitor"),
        ("sweep", ("sweep", "page", "importance"), "kdlab.notebook.sweep_view.SweepView"),
    ],
)
def test_who_is_asked_to_show_itself_has_its_viewer(stand_in, viewer, words, place):
    calls = stand_in(place, View())
    assert viewers[viewer](*words) == "shown"
    assert calls == [(words, {})]


def test_a_live_view_of_several_needs_one(stand_in):
    calls = stand_in("kdlab.notebook.runs_together.RunsTogether", View())
    assert session.live(1, 2) == "shown"
    assert calls == [(([1, 2],), {})]
    with pytest.raises(BadInput, match="Give the runs to show"):
        session.live()


def test_runs_and_sweeps_are_given_by_name_too(stand_in, elsewhere, monkeypatch):
    """`kdlab.compare` took names, and the others failed on them."""
    run = WrittenRun().begin().train(1).handle
    chaos = stand_in("kdlab.run.handle.chaos.chaos")
    lives = stand_in("kdlab.notebook.runs_together.RunsTogether", View())
    sweeps = stand_in("kdlab.tuning.attach_sweep", "sweep")
    monkeypatch.setattr(session, "find_sweep", lambda study: None)
    session.chaos(run.id, kill_teacher=1)
    session.live(run.id, run)
    ((attached,), _), (([first, second],), _) = chaos[0], lives[0]
    assert {attached.id, first.id, second.id, session.find_job("last").id} == {run.id}
    assert session.find_job("sweeps/mine") == "sweep"
    assert sweeps == [(("mine",), {})]
    assert run.id in session.page(run.id)
    for call in (session.page, session.live, session.chaos):
        with pytest.raises(NotFoundError, match="no run 'none_such'"):
            call("none_such")
