"""Commands that start, watch and change runs: their calls, and their exit codes."""

import json
import signal
from types import SimpleNamespace

import pytest
from asked_runs import ARun, Asked, Shown, recorded_calls

from kdlab import cli
from kdlab.commands import (
    attach,
    chaos,
    control,
    resume,
    run,
    scale,
    stop,
    sweep,
)
from kdlab.commands.command import report_tracking
from kdlab.errors import BadInput, RunFailed
from kdlab.events.checks import CheckMade
from kdlab.events.general import Warned

FINISHED = {"run_dir": "runs/r1", "tracking_uri": "sqlite:///x"}


def test_attach_shows_a_finished_runs_table_and_result(typed, attached, monkeypatch):
    handle = ARun(FINISHED, table="| 98 % |")
    monkeypatch.setattr("kdlab.commands.attach.Run", ARun)
    attached(handle)
    code, out, err = typed(attach, "r1", "--json")
    assert code == 0
    assert json.loads(out) == FINISHED
    assert "| 98 % |" in err
    assert "Compare in MLflow: kdlab ui" in err
    assert "kdlab export r1" in err
    assert handle.calls == [("wait", "see"), ("table",)]


def test_ctrl_c_leaves_a_run_that_is_watched(typed, attached):
    names = attached(ARun(wait=KeyboardInterrupt()))
    code, out, err = typed(attach)
    assert (code, out, names) == (0, "", ["last"])
    assert "r1 continues" in err


def test_a_sweep_has_its_outcome(typed, attached, monkeypatch):
    monkeypatch.setattr("kdlab.session.find_sweep", lambda study: None)
    handle = ARun({"study": "s"})
    handle.outcome = "best: lr=0.1"
    names = attached(handle)
    assert typed(attach, "sweeps/s") == (0, "best: lr=0.1\n", "")
    assert names == ["s"]


@pytest.mark.parametrize(("words", "how"), [([], "stop"), (["--now"], "kill")])
def test_stop_waits_for_the_end(typed, attached, words, how):
    handle = ARun()
    attached(handle)
    code, out, _ = typed(stop, "r1", *words, "--json")
    assert (code, json.loads(out)) == (0, {"run_id": "r1", "state": "stopped"})
    assert handle.calls == [(how,), ("wait",)]


def test_scale_says_how_many(typed, attached):
    handle = ARun()
    attached(handle)
    code, out, err = typed(scale, "r1", "3", "--json")
    assert (code, json.loads(out)) == (0, {"run_id": "r1", "ranks": 3})
    assert handle.calls == [("scale", 3)]
    assert "will resize to 3 ranks" in err


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["pause"], ("pause",)),
        (
            ["set", "soft_labels.ut=700", "lr=1e-1"],
            ("set", {"soft_labels.ut": 700.0, "lr": 0.1}),
        ),
        (["kill-teacher", "teacher-0"], ("kill_teacher", "teacher-0")),
        (["back"], ("back",)),
        (["back", "40"], ("back", 40)),
    ],
)
def test_control_calls_the_order_of_its_name(typed, attached, words, call):
    handle = ARun(back=40)
    attached(handle)
    code, out, _ = typed(control, "r1", *words, "--json")
    assert code == 0
    assert handle.calls == [call]
    assert json.loads(out) == {"run_id": "r1", "order": words[0], "values": words[1:]}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["pause", "now"], "pause takes no values"),
        (["kill-teacher"], "takes the name of one teacher"),
        (["set", "lr=much"], "'lr=much' is not KEY=NUMBER"),
        (["back", "-1"], "back takes nothing, or a step"),
        (["back", "1", "2"], "back takes nothing, or a step"),
    ],
)
def test_control_refuses_what_an_order_does_not_take(typed, attached, words, fault):
    handle = ARun()
    attached(handle)
    with pytest.raises(BadInput, match=fault):
        typed(control, "r1", *words)
    assert not handle.calls


def test_set_without_values_shows_what_can_be_set(typed, attached):
    knob = SimpleNamespace(name="lr", value=0.25, range="> 0")
    attached(ARun(tunables=[knob]))
    assert typed(control, "r1", "set")[1] == "lr = 0.25  (> 0)\n"


def test_chaos_ends_what_it_began_whatever_happens(typed, attached, monkeypatch):
    trouble = Asked(wait=KeyboardInterrupt())
    calls = recorded_calls(monkeypatch, "kdlab.run.handle.chaos.chaos", trouble)
    handle = ARun()
    attached(handle)
    with pytest.raises(KeyboardInterrupt):
        typed(chaos, "r1", "kill_teacher=1", "every_s=5")
    assert trouble.calls == [("wait",), ("stop",)]
    (run_, line, settings), *_ = calls
    assert (run_, settings) == (handle, {"kill_teacher": 1, "every_s": 5})
    trouble.answers, trouble.done = {}, 2
    trouble.spec = SimpleNamespace(events=3)
    line(Warned(message="the disk is full"))
    code, out, _ = typed(chaos, "r1", "kill_teacher=1")
    assert code == 0
    assert "the disk is full" in out
    assert out.endswith("2 of 3 events hit somebody.\n")


def test_a_started_run_is_reported_and_ctrl_c_is_as_it_was(typed, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    handle = ARun(FINISHED, table="| 98 % |", tracking="it is late")
    experiment = Asked(start=handle)
    calls = recorded_calls(monkeypatch, "kdlab.commands.run.load", experiment)
    code, out, err = typed(run, "smoke/none", "train.epochs=1")
    assert code == 0
    assert calls == [("smoke/none", "train.epochs=1")]
    assert out == "\n| 98 % |\n\n"
    assert "MLflow: it is late" in err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_detached_run_is_not_waited_for(typed, monkeypatch):
    handle = ARun()
    recorded_calls(monkeypatch, "kdlab.commands.run.load", Asked(start=handle))
    code, out, err = typed(run, "smoke/none", "--detach", "--json")
    assert code == 0
    assert json.loads(out) == {"run_id": "r1", "run_dir": "runs/r1"}
    assert "kdlab attach r1" in err
    assert not handle.calls


def test_ctrl_c_stops_and_twice_ends(monkeypatch, capfd):
    class Pressed(ARun):
        def wait(self, see, since):
            self.calls.append(("wait",))
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

    handle = Pressed()
    recorded_calls(monkeypatch, "kdlab.commands.run.load", Asked(start=handle))
    code = run.do(cli.parser().parse_args(["run", "smoke/none"]))
    assert code == 130
    assert handle.calls == [("wait",), ("stop",), ("kill",)]
    err = capfd.readouterr().err
    assert "stopping: work under way is saved" in err
    assert "kdlab resume r1" in err


def test_ctrl_c_before_anything_began(monkeypatch, capfd):
    class Slow(Asked):
        def start(self, say):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    recorded_calls(monkeypatch, "kdlab.commands.run.load", Slow())
    try:
        with pytest.raises(KeyboardInterrupt):
            run.do(cli.parser().parse_args(["run", "smoke/none"]))
        assert (
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        )  # no traceback of a second one
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted before anything was started" in capfd.readouterr().err


def test_a_run_that_failed_raises_its_reason(typed, monkeypatch):
    handle = ARun(RunFailed("it failed"))
    recorded_calls(monkeypatch, "kdlab.commands.run.load", Asked(start=handle))
    with pytest.raises(RunFailed, match="it failed"):
        typed(run, "smoke/none")


def test_a_dry_run_starts_nothing(typed, monkeypatch):
    finding = CheckMade(code="KD-D08", result="tip", title="t", found="few", advice="More")
    experiment = Asked(estimate=Shown(text="2 minutes"), checks=[finding])
    recorded_calls(monkeypatch, "kdlab.commands.run.load", experiment)
    code, out, _ = typed(run, "smoke/none", "--dry-run")
    assert (code, out.split()) == (0, ["2", "minutes", "tip", "KD-D08", "few", "More"])
    assert [call[0] for call in experiment.calls] == ["check", "checks", "estimate"]


def test_resume_hands_over_what_is_trusted(typed, monkeypatch):
    calls = recorded_calls(
        monkeypatch, "kdlab.commands.resume.resume", ARun(FINISHED, table="t")
    )
    assert typed(resume, "r1", "--trust-components")[0] == 0
    assert typed(resume, "r1", "--anew", "--detach")[0] == 0
    assert calls == [("r1", True, False), ("r1", False, True)]


@pytest.mark.parametrize(
    ("tracking", "result", "line"),
    [
        ("writing goes on", None, "MLflow: writing goes on\n"),
        ("", FINISHED, "Compare in MLflow: kdlab ui\n"),
        ("", {"tracking_uri": None}, ""),
        ("", None, ""),
    ],
)
def test_mlflow_is_named_where_it_has_something(tracking, result, line, capsys):
    report_tracking(ARun(result, tracking))
    assert capsys.readouterr() == ("", line)


class ASweep(ARun):
    """A stand-in for `kdlab.tuning.handle.Sweep`, with all that the command needs."""

    outcome = "best: lr=0.1"


@pytest.fixture
def searched(monkeypatch):
    """Let `search` start this sweep; return the calls of both."""

    def put(handle):
        search = Asked(start=handle)
        calls = recorded_calls(monkeypatch, "kdlab.tuning.search", search)
        return calls, search.calls

    return put


def test_a_sweep_says_its_best_and_saves_it(typed, searched, tmp_path):
    handle = ASweep({"storage": "sqlite:///s.db", "best": 3}, save=["configs/tuned.yaml"])
    calls, started = searched(handle)
    words = ["--trials", "4", "--study", "mine", "--save", "tuned", "--json"]
    code, out, err = typed(sweep, "quickstart", "keep=all", *words)
    assert code == 0
    assert calls == [("quickstart", "keep=all", {"trials": 4})]
    assert [call[:2] for call in started] == [("start", "mine")]
    assert [call[0] for call in handle.calls] == ["wait", "save"]
    assert json.loads(out) == {"storage": "sqlite:///s.db", "best": 3}
    assert "best: lr=0.1" in err
    assert "optuna-dashboard sqlite:///s.db" in err
    assert "saved configs/tuned.yaml" in err


def test_a_sweep_of_a_mistyped_name_or_to_a_wrong_one_is_not_started(typed, searched):
    calls, started = searched(ASweep())
    with pytest.raises(BadInput, match="quickstart"):
        typed(sweep, "quickstar")
    with pytest.raises(BadInput):
        typed(sweep, "quickstart", "--save", "../tuned")
    assert not calls
    assert not started


def test_a_detached_sweep_is_not_waited_for(typed, searched):
    handle = ASweep()
    searched(handle)
    assert typed(sweep, "quickstart", "--detach")[0] == 0
    assert not handle.calls


def test_a_sweep_that_is_ended_at_once_says_how_to_go_on(typed, searched):
    class Pressed(ASweep):
        def wait(self, see, since):
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

    handle = Pressed()
    searched(handle)
    code, _, err = typed(sweep, "quickstart")
    assert (code, handle.calls) == (130, [("stop",), ("kill",)])
    assert "the same command continues the study" in err
