"""The command line as it is typed, on folders of runs: what it prints, and its exit code."""

import json
import signal

import pytest
from PIL import Image
from tests_support import event

from kdlab import cli
from kdlab.changes.change import CONTROL, ChangeReader
from kdlab.commands import doctor, run
from kdlab.errors import BadInput, ClusterError
from kdlab.events.general import Note
from kdlab.events.log import EventLog


def last_line(out):
    return json.loads(out.strip().split("\n")[-1])


# All commands


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_says_what_it_is_about_and_refuses_what_it_does_not_know(name, capsys):
    words = cli.COMMANDS[name].ABOUT
    assert words[0].islower()
    assert not words.endswith(".")
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    assert words.split()[0] in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        cli.main([name, "--no-such-option"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("ui", "--port", "99999999"), "is 99999999, must be <= 65535"),
        (("ui", "--port", "1" + 400 * "0"), "must be <= 65535"),
        (("ui", "--port", "high"), "invalid number value: 'high'"),
        (("teacher", "tls://10.0.0.1:1", "--label-port", "-1"), "is -1, must be >= 0"),
        (("teacher", "tls://10.0.0.1:1", "--patience", "nan"), "must be a finite number"),
        (("runs", "-n", "0"), "is 0, must be >= 1"),
        (("examine", "last", "--most", "0"), "is 0, must be >= 1"),
    ],
)
def test_a_number_outside_its_range_is_refused(capsys, words, why):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words)
    assert why in capsys.readouterr().err


def test_a_current_folder_that_was_deleted_is_refused(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert cli.main(["list"]) == 2
    assert "The current folder was deleted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(BadInput("it is wrong"), 2), (ClusterError("it is gone"), 1)],
)
def test_an_error_is_said_on_stderr_with_its_exit_code(monkeypatch, capsys, error, code):
    def fails(arguments):
        raise error

    monkeypatch.setattr(doctor, "do", fails)
    assert cli.main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"{error}\n")


def test_ctrl_c_is_130_and_one_more_is_no_traceback(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "do", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert cli.main(["doctor"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "Interrupted.\n"


def test_options_may_stand_before_and_behind_what_is_set(monkeypatch):
    taken = []
    monkeypatch.setattr(run, "do", lambda arguments: taken.append(arguments) or 0)
    for words in (
        ["quickstart", "--json", "train.epochs=2", "--detach", "loss=losses/kl"],
        ["--json", "--detach", "quickstart", "train.epochs=2", "loss=losses/kl"],
    ):
        assert cli.main(["run", *words]) == 0
    first, second = taken
    assert first == second
    assert first.overrides == ["train.epochs=2", "loss=losses/kl"]


# What there is


def test_list_show_and_recipes_as_text_and_as_json(kdlab_cli):
    code, out, _ = kdlab_cli("list", "losses")
    assert code == 0
    assert "losses/hinton" in out
    code, out, _ = kdlab_cli("list", "losses", "--json")
    kinds = last_line(out)["kinds"]
    assert "losses/hinton" in json.dumps(kinds)
    code, out, _ = kdlab_cli("list", "--search", "hinton")
    assert "losses/hinton" in out
    assert "models/cifar_resnet" not in out
    code, out, _ = kdlab_cli("show", "smoke/none", "train.epochs=7")
    assert code == 0
    assert "epochs" in out
    assert "override" in out
    code, out, _ = kdlab_cli("show", "losses/hinton", "--json")
    assert "temperature" in json.dumps(last_line(out))
    code, out, _ = kdlab_cli("recipes", "--json")
    assert code == 0
    assert len(last_line(out)["recipes"]) > 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reprodoce", "x"), "Nearest: reproduce"),
        (("compare", "a", "b"), "kdlab runs (list runs, newest first; compare them"),
        (("list", "lossez"), "losses"),
        (("show", "smoke/nonne"), "smoke/none"),
        (("run", "quickstartt"), "quickstart"),
        (("run", "smoke/none", "train.lrr=1"), "train.lr"),
        (("sweep", "quickstartt"), "quickstart"),
        (("simulate", "edl_dist/table33"), "edl_dist/table3"),
        (("data", "data/digitss"), "data/digits"),
        (("attach", "nobody"), "There is no run 'nobody'"),
        (("stop", "nobody"), "no run"),
        (("stop", "sweeps/nobody"), "no sweep"),
        (("control", "nobody", "pause"), "no run"),
        (("resume", "nobody"), "no run"),
        (("export", "nobody"), "no run"),
        (("examine", "nobody"), "no run"),
        (("predict", "nobody", "x.jpg"), "no run"),
        (("scale", "nobody", "2"), "no run"),
        (("chaos", "nobody", "kill_teacher=1"), "no run"),
        (("runs", "--compare", "nobody", "other"), "no run"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest_and_is_exit_code_2(
    kdlab_cli, words, message
):
    code, out, err = kdlab_cli(*words)
    assert code == 2
    assert message in err
    assert out == ""


def test_a_run_and_a_config_are_found_by_their_paths(
    kdlab_cli, run_folder, elsewhere, monkeypatch
):
    run = run_folder()
    for place in (run.path, f"runs/{run.run_id}/"):
        assert run.run_id in kdlab_cli("stop", str(place))[1]
    monkeypatch.setenv("HOME", str(elsewhere))
    (elsewhere / "own.yaml").write_text("train: {epochs: 2}")
    code, _, err = kdlab_cli("run", "~/own.yaml", "train.epoch=3")
    assert (code, "Nearest: epochs" in err) == (2, True)


@pytest.mark.long
def test_data_is_looked_at_and_a_broken_image_is_exit_code_1(kdlab_cli, elsewhere):
    code, out, _ = kdlab_cli("data", "data/digits_tiny", "--json")
    assert code == 0
    assert last_line(out)["classes"]
    photos = elsewhere / "photos"
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
        for k in range(6):
            Image.new("RGB", (40, 40), (20 * k, 40, 80)).save(photos / name / f"{k}.png")
    (photos / "dog" / "torn.png").write_bytes(b"\x89PNG and no more")
    code, out, _ = kdlab_cli("data", str(photos), "--html", "sheet.html")
    assert code == 1
    assert "torn.png" in out
    assert "written to" in out
    assert (elsewhere / "sheet.html").stat().st_size > 1000


# Runs


def test_runs_are_listed_newest_first(kdlab_cli, run_folder):
    for name, created in (("20260101-000000-aaaa", 1.0), ("20260102-000000-bbbb", 2.0)):
        run_folder(name).write_status(created=created)
    code, out, _ = kdlab_cli("runs")
    assert code == 0
    assert out.index("bbbb") < out.index("aaaa")
    code, out, _ = kdlab_cli("runs", "-n", "1", "--json")
    (row,) = last_line(out)["runs"]
    assert "bbbb" in json.dumps(row)


def test_a_finished_run_is_attached_to_and_its_result_is_one_line_of_json(
    kdlab_cli, run_folder
):
    folder = run_folder()
    EventLog(folder.events).emit(Note(message="the teacher is kept"))
    code, out, err = kdlab_cli("attach", "last", "--json")
    assert code == 0, err
    assert last_line(out)["run_id"] == folder.run_id
    assert len(out.strip().split("\n")) == 1  # tables are on stderr then
    assert "kdlab export" in err
    code, out, err = kdlab_cli("attach", "aaaa")
    assert code == 0
    assert "N-training (no teacher)" in out


def test_ctrl_c_while_watching_leaves_the_run_as_it_is(kdlab_cli, run_folder, monkeypatch):
    from kdlab.run import Run

    run_folder(state="running")

    def interrupted(self, see):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "wait", interrupted)
    code, out, err = kdlab_cli("attach")
    assert (code, out) == (0, "")
    assert "continues; watch it again with: kdlab attach" in err


@pytest.mark.parametrize(
    ("facts", "code", "message"),
    [
        ({"state": "failed", "exit_code": 1, "error": "no room"}, 1, "no room"),
        ({"state": "failed", "exit_code": 2, "error": "wrong"}, 2, "wrong"),
        ({"state": "stopped", "exit_code": 130}, 130, "kdlab resume"),
        ({"state": "running"}, 1, "killed from outside"),
    ],
)
def test_how_a_run_ended_is_the_exit_code_of_who_watches(
    kdlab_cli, run_folder, facts, code, message
):
    state, more = facts["state"], {k: v for k, v in facts.items() if k != "state"}
    folder = run_folder(state="stopped")
    folder.write_status(state=state, **more)
    (folder.path / "lock").touch()
    exit_code, _, err = kdlab_cli("attach")
    assert exit_code == code
    assert message in err


def test_what_has_ended_is_stopped_at_once(kdlab_cli, run_folder):
    folder = run_folder()
    code, out, _ = kdlab_cli("stop", "last", "--json")
    assert code == 0
    assert last_line(out) == {"run_id": folder.run_id, "state": "finished"}
    assert kdlab_cli("stop", "last", "--now")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("control", "last", "pause"),
        ("resume", "last"),
        ("chaos", "last", "kill_teacher=1"),
    ],
)
def test_a_run_that_has_ended_takes_no_orders(kdlab_cli, run_folder, words):
    run_folder()
    code, _, err = kdlab_cli(*words)
    assert code == 2
    assert "finished" in err


# Orders


@pytest.fixture
def training(run_folder):
    """The folder of a run whose member trains."""
    folder = run_folder(state="running")
    log = EventLog(folder.events)
    log.emit(event("member_started", member="none/seed0", source="none", seed=0))
    tunable = {"name": "lr_factor", "value": 1.0, "range": {"gt": 0.0, "le": 100.0}}
    folder.tunables.write_text(json.dumps({"none/seed0": [tunable]}))
    return folder


def orders(folder):
    return [(o.KIND, o.member) for o in ChangeReader(folder.path / CONTROL)()]


@pytest.mark.parametrize("order", ["pause", "go-on", "checkpoint"])
def test_an_order_stands_in_the_runs_folder(kdlab_cli, training, order):
    code, out, err = kdlab_cli("control", "last", order, "--json")
    assert code == 0, err
    assert last_line(out) == {"run_id": training.run_id, "order": order, "values": []}
    assert orders(training) == [(order.replace("-", "_"), "none/seed0")]


def test_numbers_are_set_and_shown_with_their_ranges(kdlab_cli, training):
    assert kdlab_cli("control", "last", "set", "lr_factor=0.5")[0] == 0
    (change,) = ChangeReader(training.path / CONTROL)()
    assert change.set == {"lr_factor": 0.5}
    code, out, err = kdlab_cli("control", "last", "set", "--json")
    assert code == 0
    assert "lr_factor = " in err
    assert set(last_line(out)["now"]) == {"lr_factor"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("set", "lr_factor"), "'lr_factor' is not KEY=NUMBER"),
        (("set", "lr_factor=much"), "is not KEY=NUMBER"),
        (("set", "lr_factor=0"), "lr_factor"),
        (("set", "loss.temperature=2"), "loss.temperature"),
        (("pause", "now"), "pause takes no values"),
        (("drain-teacher",), "takes the name of one teacher"),
        (("kill-teacher", "a", "b"), "takes the name of one teacher"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_not_written(
    kdlab_cli, training, words, message
):
    code, _, err = kdlab_cli("control", "last", *words)
    assert code == 2
    assert message in err
    assert orders(training) == []


@pytest.mark.parametrize(
    ("word", "answer"), [("kil_teacher=1", "kill_teacher"), ("run=1", "no key 'run'")]
)
def test_chaos_names_the_kinds_there_are(kdlab_cli, training, word, answer):
    code, _, err = kdlab_cli("chaos", "last", word)
    assert code == 2
    assert answer in err


def test_a_run_without_a_student_has_nothing_to_hand_out(kdlab_cli, run_folder):
    run_folder(state="stopped")
    for words in (("examine", "last"), ("predict", "last", "x.jpg"), ("export", "last")):
        code, _, err = kdlab_cli(*words)
        assert code == 2, words
        assert err.strip()
