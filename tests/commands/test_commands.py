"""Each command's call with its words, its output on stdout and stderr, its exit code."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from asked_runs import ARun, Asked, Shown, recorded_calls
from PIL import Image

from kdlab import cli
from kdlab.commands import (
    bench,
    completion,
    data,
    delete,
    doctor,
    examine,
    export,
    label,
    mark,
    new,
    page,
    predict,
    recipes,
    reproduce,
    runs,
    show,
    simulate,
    teacher,
    ui,
)
from kdlab.commands import list as listing
from kdlab.commands.command import print_text
from kdlab.errors import BadInput, RunFailed


def test_runs_lists_compares_or_syncs(typed, monkeypatch):
    lists = recorded_calls(
        monkeypatch, "kdlab.commands.runs.runs", Shown(text="r1 finished")
    )
    compared = recorded_calls(
        monkeypatch, "kdlab.commands.runs.compare", Shown(text="lr differs")
    )
    recorded_calls(monkeypatch, "kdlab.commands.runs.sync_all", "r1: 3 rows\nr2: 1 row")
    assert typed(runs, "-n", "3")[1] == "r1 finished\n"
    assert typed(runs, "--compare", "r1", "r2")[1] == "lr differs\n"
    code, out, _ = typed(runs, "--sync", "--json")
    assert (code, json.loads(out)) == (0, {"written": ["r1: 3 rows", "r2: 1 row"]})
    assert (lists, compared) == ([(3, {"archived": False})], [("r1", "r2")])


@pytest.fixture
def there(elsewhere, monkeypatch):
    """A folder of photos; any run that is looked for exists."""
    (elsewhere / "photos").mkdir()
    for name in ("a.png", "b.png"):
        (elsewhere / name).write_bytes(b"")
    for command in (export, predict):
        monkeypatch.setattr(command, "find", lambda run: None)


@pytest.mark.parametrize(("broken", "code"), [([], 0), (["a.png"], 1)])
def test_data_fails_where_an_image_is_broken(there, typed, monkeypatch, broken, code):
    sheet = Shown(text="10 images", broken=broken, save=Path)
    calls = recorded_calls(monkeypatch, "kdlab.run.outputs.data_sheet.look_at", sheet)
    ended, out, err = typed(data, "photos", "size=70", "--html", "p.html", "--json")
    assert (ended, json.loads(out)) == (code, {"text": "10 images"})
    assert "written to p.html" in err
    assert calls[0][:2] == ("photos", "size=70")


def test_a_smaller_set_is_written_to_the_home_that_is_named(there, typed, monkeypatch):
    Image.new("RGB", (8, 8)).save("photos/a.png")
    home = Path.cwd()
    monkeypatch.setenv("HOME", str(home))
    calls = recorded_calls(monkeypatch, "kdlab.data.smaller_set.write_smaller")
    with pytest.raises(AttributeError):  # it has nothing to tell of
        typed(data, "photos", "--store", "~/x")
    assert calls[0][1] == home / "x"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--quality", "0"), "--quality: only possible with --store FOLDER"),
        (("--lossless", "--factor", "2"), "--lossless, --factor: only possible with"),
        (("--store", "new", "--html", "p.html"), "--html: not possible with --store"),
        (("--store", "new", "--closely"), "--closely: not possible with --store"),
    ],
)
def test_data_refuses_options_that_would_do_nothing(there, typed, words, message):
    with pytest.raises(BadInput, match=message) as refused:
        typed(data, "photos", *words)
    assert refused.value.exit_code == 2
    assert not Path("new").exists()


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("missing", 1)])
def test_doctor_fails_where_something_is_missing(typed, monkeypatch, state, code):
    findings = [{"name": "torch", "state": state}]
    recorded_calls(monkeypatch, "kdlab.run.doctor.examine", findings)
    recorded_calls(monkeypatch, "kdlab.run.doctor.printed", "a table")
    ended, out, err = typed(doctor, "--json")
    assert (ended, json.loads(out), err) == (code, findings, "a table\n")


def test_examine_says_where_its_page_is(typed, attached):
    page = Shown(text="98 %", save=lambda path: Path(path).absolute())
    handle = ARun(examine=page)
    attached(handle)
    _, out, err = typed(examine, "r1", "--split", "validation", "--out", "e.html", "--json")
    assert handle.calls == [("examine", "validation", 2000, {"closely": False})]
    assert json.loads(out) == {"text": "98 %", "page": str(Path("e.html").absolute())}
    assert "Page: " in err


def test_mark_changes_what_was_typed_and_nothing_else(typed, attached):
    handle = ARun()
    handle.marks = "good"
    attached(handle)
    typed(mark, "r1", "--tag", "good", "--tag", "new", "--untag", "bad", "--unarchive")
    assert handle.calls == [("tag", "good", "new", {"drop": ["bad"]}), ("archive", False)]
    handle.calls.clear()
    assert typed(mark, "r1", "--note", "")[1] == "r1: good\n"
    assert handle.calls == [("note", "")]
    handle.calls.clear()
    typed(mark, "r1")
    assert handle.calls == []


@pytest.mark.parametrize(("yes", "sure"), [(("--yes",), True), ((), False)])
def test_delete_asks_unless_yes_is_typed(typed, attached, monkeypatch, yes, sure):
    terminal = SimpleNamespace(isatty=lambda: True, readline=lambda: "n\n")
    monkeypatch.setattr("sys.stdin", terminal)
    handle = ARun(delete="what came of it")
    attached(handle)
    _, out, _ = typed(delete, "r1", "r1", *yes)
    ((name, ask),) = handle.calls
    assert (name, out) == ("delete", "what came of it\n")
    assert ask("r1: 5 MB") is sure


MADE = "none/seed0\nout.onnx (3 networks)\nand more"


def test_export_says_training_and_file(there, typed, monkeypatch):
    calls = recorded_calls(monkeypatch, "kdlab.run.outputs.export.export_student", MADE)
    _, out, _ = typed(export, "r1", "--to", "onnx", "--out", "out.onnx", "--json")
    assert json.loads(out) == {"member": "none/seed0", "written": "out.onnx", "text": MADE}
    assert calls[0][0] == "r1"
    assert calls[0][1] | {"to": "onnx", "out": "out.onnx"} == calls[0][1]


def test_a_global_model_is_exported_as_safetensors_alone(there, typed, monkeypatch):
    calls = recorded_calls(monkeypatch, "kdlab.run.outputs.export.export_global", MADE)
    with pytest.raises(BadInput, match="omit --to"):
        typed(export, "r1", "--global", "--to", "onnx")
    assert typed(export, "r1", "--global")[0] == 0
    assert calls == [("r1", {"out": None, "member": None})]


def test_an_export_to_a_place_that_cannot_be_written(there, typed, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError("No space left")

    monkeypatch.setattr("kdlab.run.outputs.export.export_student", full)
    with pytest.raises(BadInput, match=r"cannot be written to \.: No space left"):
        typed(export, "r1")


def test_list_show_and_recipes_read_the_registry(typed):
    _, out, _ = typed(listing, "losses", "--json")
    names = [entry["name"] for entry in json.loads(out)["kinds"]["losses"]]
    assert "losses/hinton" in names
    assert "temperature" in typed(show, "losses/hinton")[1]
    _, out, err = typed(show, "smoke/none", "train.epochs=3", "--json")
    assert "train.epochs" in err
    assert json.loads(out)
    _, out, err = typed(recipes, "--json")
    assert json.loads(out)["recipes"]
    assert err


def test_new_says_what_it_made(there, typed, monkeypatch):
    chosen = SimpleNamespace(config="photos/x", reasons=["small images"], seconds=60.0)
    files = SimpleNamespace(config=Path("c.yaml"), notebook=Path("n.ipynb"), chosen=chosen)
    calls = recorded_calls(monkeypatch, "kdlab.run.new.new", files)
    _, out, _ = typed(new, "mine", "--data", "photos", "--minutes", "2", "--json")
    assert json.loads(out) == {
        "config": "c.yaml", "notebook": "n.ipynb", "chosen": "photos/x",
        "reasons": ["small images"], "seconds": 60.0,
    }  # fmt: skip
    (name, wishes, options), *_ = calls
    assert (name, wishes.data, wishes.minutes) == ("mine", "photos", 2.0)
    assert options["force"] is False


def test_predict_hands_over_its_images(there, typed, monkeypatch):
    calls = recorded_calls(
        monkeypatch,
        "kdlab.run.outputs.prediction.answers",
        Shown(text="a cat", taken="none/seed0"),
    )
    _, out, err = typed(predict, "r1", "a.png", "b.png", "--top", "2", "--json")
    assert (json.loads(out), err) == (
        {"predictions": {"text": "a cat"}, "taken": "none/seed0"},
        "a cat\n",
    )
    assert calls[0][:3] == ("r1", ["a.png", "b.png"], 2)


def test_label_hands_over_what_was_typed(there, typed, monkeypatch):
    calls = recorded_calls(monkeypatch, "kdlab.run.outputs.prediction.label", None)
    typed(label, "r1", "photos", "--out", "t.csv", "--by-name", "--member", "none/seed0")
    assert calls[0][:3] == ("r1", "photos", "t.csv")
    chosen = {k: calls[0][3][k] for k in ("member", "best", "by_name", "force")}
    assert chosen == {
        "member": "none/seed0",
        "best": False,
        "by_name": True,
        "force": False,
    }


def test_predict_takes_an_export_below_the_home_folder(elsewhere, typed, monkeypatch):
    monkeypatch.setenv("HOME", str(elsewhere))
    (elsewhere / "mine").mkdir()
    (elsewhere / "a.png").write_bytes(b"")
    recorded_calls(
        monkeypatch,
        "kdlab.run.outputs.prediction.answers",
        Shown(text="a cat", taken=""),
    )
    assert typed(predict, "~/mine", "a.png")[0] == 0


def test_a_simulation_has_table_and_report(typed, monkeypatch):
    calls = recorded_calls(
        monkeypatch, "kdlab.run.simulations.simulate", ({"name": "t"}, "table")
    )
    _, out, err = typed(simulate, "edl_dist/table3", "students=2", "--json")
    assert (json.loads(out), err) == ({"name": "t"}, "table\n")
    assert calls[0][:2] == ("edl_dist/table3", ["students=2"])


def test_reproduce_without_a_name_lists(typed, monkeypatch):
    recorded_calls(
        monkeypatch, "benchmarks.reproduce.command.known", {"ec_dnn/table1": "errors"}
    )
    assert typed(reproduce)[1] == "ec_dnn/table1  errors\n"
    with pytest.raises(BadInput, match="Name what to reproduce"):
        typed(reproduce, "measurement.repeats=5")


def test_reproduce_parts_names_from_settings(typed, monkeypatch):
    result = Asked(table="a table", facts={"name": "t"})
    result.files, result.figures = [Path("t.csv")], [Path("f.png")]
    calls = recorded_calls(monkeypatch, "benchmarks.reproduce.command.reproduce", [result])
    _, out, err = typed(
        reproduce, "t", "measurement.repeats=5", "--simulate-only", "--json"
    )
    names, overrides, options = calls[0]
    assert (names, overrides) == (["t"], ["measurement.repeats=5"])
    assert (options["measures"], options["keeps"]) == (False, False)
    assert json.loads(out) == {"name": "t", "figures": ["f.png"]}
    assert err == "a table\nt.csv\n"
    recorded_calls(monkeypatch, "benchmarks.reproduce.command.reproduce", [result, result])
    assert len(json.loads(typed(reproduce, "t", "u", "--json")[1])["reproductions"]) == 2


def test_a_bench_takes_what_it_has(typed, monkeypatch):
    from kdlab.report.figures import figure, report

    measured = report("overhead", [figure("import_s", 0.5, "s", "<= 1")])
    calls = recorded_calls(monkeypatch, "benchmarks.overhead.measure", measured)
    _, out, _ = typed(bench, "overhead", "--repeats", "3")
    assert "holds" in out
    assert calls[0][0]["repeats"] == 3
    assert set(calls[0][0]) == {"repeats", "say"}
    with pytest.raises(BadInput, match="overhead has no settings"):
        typed(bench, "overhead", "root=photos")
    with pytest.raises(BadInput, match="overhead has no parts"):
        typed(bench, "overhead", "--only", "served")


def test_teacher_joins_as_it_was_told(typed, monkeypatch, tmp_path):
    calls = recorded_calls(monkeypatch, "kdlab.run.join.join", 3)
    code, *_ = typed(
        teacher, "tcp://10.0.0.1:8786", "--insecure", "--threads", "2", "--name", "gpu0",
        "--patience", "5", "--model", "teachers/x",
    )  # fmt: skip
    assert code == 3
    ((config, model),) = calls
    assert model == "teachers/x"
    assert (config.scheduler, config.name, config.threads) == (
        "tcp://10.0.0.1:8786",
        "gpu0",
        2,
    )
    assert (config.patience_s, config.device, config.notice) == (5.0, "auto", None)
    with pytest.raises(BadInput, match=r"http://\[ is no address"):
        typed(teacher, "tcp://10.0.0.1:8786", "--insecure", "--notice", "http://[")


def test_ui_serves(typed, monkeypatch):
    calls = recorded_calls(monkeypatch, "kdlab.run.ui.serve_ui", 0)
    assert typed(ui, "--port", "5001", "--open")[0] == 0
    assert calls == [(5001, None, {"browser": True})]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_says_what_belongs_into_a_shells_file(typed, shell):
    assert "register-python-argcomplete" in typed(completion, shell)[1]


def test_the_tab_key_knows_names(monkeypatch, elsewhere):
    parsers = []
    monkeypatch.setattr("argcomplete.autocomplete", parsers.append)
    parser = cli.parser()
    completion.complete(parser)
    assert parsers == [parser]
    commands = parser._subparsers._group_actions[0].choices
    completers = {
        f"{command} {action.dest}": action.completer()
        for command, subparser in commands.items()
        for action in subparser._actions
        if hasattr(action, "completer")
    }
    assert "quickstart" in completers["run experiment"]
    assert not [name for name in completers["run experiment"] if name.startswith("sweeps/")]
    assert "losses/hinton" in completers["show name"]
    assert "data/digits" in completers["show name"]
    assert completers["stop run"] == ["last"]
    assert "quickstart" in completers["sweep sweep"]


def test_a_fault_is_no_word_to_complete():
    def broken():
        raise OSError("gone")

    assert completion._quietly(broken)(prefix="x") == []


def test_errors_have_their_exit_codes(monkeypatch, capsys):
    for error, code in ((BadInput("no"), 2), (RunFailed("no"), 1)):
        monkeypatch.setattr(ui, "do", lambda _, error=error: (_ for _ in ()).throw(error))
        assert cli.main(["ui"]) == code
        assert capsys.readouterr().err == "no\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_what_a_terminal_cannot_show_is_escaped(monkeypatch, encoding):
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding, "strict"))
    monkeypatch.setattr("sys.argv", ["kdlab", "ui"])
    monkeypatch.setattr(cli, "keep_private", lambda: None)
    monkeypatch.setattr(ui, "do", lambda _: print_text("caf\udce9 ×", as_json=False) or 0)
    assert cli.main() == 0
    cli.sys.stdout.flush()
    shown = {"ascii": b"caf\\udce9 \\xd7\n", "utf-8": "caf\\udce9 ×\n".encode()}
    assert raw.getvalue() == shown[encoding]


def test_a_page_is_written_and_not_over_another(attached, typed, monkeypatch, elsewhere):
    handle = ARun()
    attached(handle)
    recorded_calls(monkeypatch, "kdlab.session.page", "<html>")
    assert typed(page, "r1", "--out", "r.html")[0] == 0
    assert Path("r.html").read_text() == "<html>"
    with pytest.raises(BadInput, match="exists already"):
        typed(page, "r1", "--out", "r.html")
    assert typed(page, "r1", "--out", "r.html", "--force")[0] == 0
    with pytest.raises(BadInput, match="there is no user 'nobodyxyz'"):
        typed(page, "r1", "--out", "~nobodyxyz/r.html")
    with pytest.raises(BadInput, match="is no path"):
        typed(page, "r1", "--out", "x" * 300)
