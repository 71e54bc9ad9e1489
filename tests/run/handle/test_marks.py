"""Tags, notes, archived and deleted runs: from folders written by hand."""

import json
import os
import re
import shutil

import pytest
from tests_support import hold

import kdlab
from kdlab.config.home import write_json
from kdlab.errors import BadInput, NotFoundError
from kdlab.experiment.folder import RunFolder
from kdlab.run import attach, runs
from kdlab.run.handle import marks
from kdlab.run.handle.run import Run

DELETED = r"^deleted: r1 \(finished\): 1\.0 MB, \d files, students: 1"


@pytest.fixture
def add_run(tmp_path, monkeypatch):
    """Add the folder of a run; the number in its name is also its time of creation."""
    monkeypatch.setenv("KDLAB_RUNS", str(tmp_path / "runs"))

    def make(name="r1", state="finished"):
        folder = RunFolder(tmp_path / "runs" / name)
        student = folder.member("none/seed0")
        student.mkdir(parents=True)
        (student / "student.safetensors").write_bytes(bytes(1_000_000))
        folder.write_origin("mine", "abc")
        folder.write_status(
            state=state, created=float(name[1:]), result={"student_top1": 90.0}
        )
        return Run(folder)

    return make


def test_tags_and_a_note_are_kept_and_shown(add_run):
    run = add_run()
    run.tag("good", "lr:0.1", "good")
    run.tag(drop=["lr:0.1", "never"])
    run.note("try again\nwith <b>more</b> epochs")
    again = attach("r1")
    assert again.marks == marks.Marks(tags=("good",), note=run.marks.note)
    assert "good · try again with <b>more</b> epochs" in repr(runs())
    assert "<b>more" not in runs()._repr_html_()
    (row,) = runs().to_json()
    assert (row["tags"], row["archived"]) == (("good",), False)


def test_archived_runs_are_out_of_sight_and_counted(add_run):
    old, new = add_run("r1"), add_run("r2")
    old.archive()
    assert [run.id for run in runs()] == ["r2"]
    assert repr(runs()).endswith("1 archived: kdlab runs --all")
    assert [run.id for run in runs(archived=True)] == ["r2", "r1"]
    new.archive()
    assert "kdlab runs --all" in runs()._repr_html_()
    assert "There are no runs yet" not in repr(runs())
    old.archive(False)
    assert [run.id for run in runs()] == ["r1"]
    assert attach("r2").state == "finished"  # nothing is gone


@pytest.mark.parametrize(
    "change",
    [
        {"tags": ("two words",)},
        {"tags": ("=1\x1b",)},
        {"tags": ("a" * 41,)},
        {"tags": tuple(map(str, range(21)))},
        {"note": "a" * 2001},
        {"note": "\ud800"},
        {"note": None},
        {"tags": 5},
        {"archived": "no"},
    ],
)
def test_what_is_no_mark_is_refused_and_those_that_were_stay(add_run, change):
    run = add_run()
    run.tag("good")
    with pytest.raises(BadInput, match="Run r1 is not marked: "):
        marks.mark(run.folder, **change)
    assert run.marks.tags == ("good",)


@pytest.mark.parametrize("tag", [["a"], {}])
def test_a_tag_that_is_no_text_is_refused(add_run, tag):
    with pytest.raises(BadInput, match="Run r1 is not marked: "):
        add_run().tag(tag)


def test_an_empty_name_is_no_part_of_another(add_run):
    """It was the only run there is, also to `kdlab delete`."""
    run = add_run()
    with pytest.raises(NotFoundError, match="There is no run ''"):
        attach("")
    assert attach(run.id[:1]).id == run.id


def test_damaged_marks_are_none_with_a_line_and_can_be_made_anew(add_run, caplog):
    run = add_run()
    (run.path / "marks.json").write_text('{"note": "\\ud800"}')
    assert run.id in repr(runs())
    assert "marks.json cannot be read" in caplog.text
    run.tag("good")
    assert run.marks == marks.Marks(tags=("good",))


def test_nothing_of_a_run_that_was_deleted_meanwhile_comes_back(add_run):
    run = add_run()
    shutil.rmtree(run.path)
    with pytest.raises(BadInput, match="was deleted meanwhile"):
        run.tag("good")
    assert not run.path.exists()


def test_a_deleted_run_is_gone_with_what_is_said_of_it(add_run):
    run, newer = add_run("r1"), add_run("r2")
    assert re.match(DELETED, run.delete())
    assert [listed.id for listed in runs()] == [newer.id]
    assert sorted(run.path.parent.iterdir()) == [newer.path]
    with pytest.raises(kdlab.KdlabError):
        attach("r1")


def test_one_that_goes_on_is_not_deleted(add_run):
    run = add_run(state="running")
    let_go = hold(run.folder)
    with pytest.raises(BadInput, match=r"r1 is running; stop it first: kdlab stop r1"):
        run.delete()
    assert run.path.is_dir()
    let_go()
    assert run.state == "lost"
    assert "deleted: r1 (lost)" in run.delete()


def test_one_that_somebody_goes_on_with_at_that_moment_is_not_deleted(add_run, monkeypatch):
    monkeypatch.setattr("kdlab.experiment.folder.PATIENCE_S", 0.0)
    run = add_run()
    let_go = hold(run.folder)  # its status is still that of before
    with pytest.raises(BadInput, match="already running"):
        run.delete()
    let_go()
    assert run.path.is_dir()


def test_an_interrupted_deletion_leaves_no_half_of_a_run(add_run, monkeypatch):
    run, newer = add_run("r1"), add_run("r2")

    def interrupted(path):
        os.unlink(next(path.rglob("student.safetensors")))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(marks.shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.delete()
    assert [listed.id for listed in runs()] == ["r2"]
    assert not run.path.exists()
    newer.delete()  # clears up what was left
    assert list(run.path.parent.iterdir()) == []


def test_a_link_to_a_folder_elsewhere_is_deleted_and_that_folder_is_not(add_run, tmp_path):
    run = add_run()
    elsewhere = run.path.rename(tmp_path / "elsewhere")
    run.path.symlink_to(elsewhere)
    run.delete()
    assert not os.path.lexists(run.path)
    assert (elsewhere / "experiment.json").is_file()


def test_an_mlflow_that_does_not_answer_keeps_its_runs_and_it_is_said(add_run, monkeypatch):
    def refused(uri):
        raise OSError("refused")

    monkeypatch.setattr("kdlab.tracking.store.client", refused)
    run = add_run()
    write_json(run.path / "tracking.json", {"uri": "http://h", "runs": {"": "x"}})
    assert run.delete().endswith("; MLflow still has it (refused)")
    assert not run.path.exists()


@pytest.mark.long
def test_commands_mark_and_delete(add_run, kdlab_cli):
    add_run("r1"), add_run("r2")
    asked = ("mark", "r1", "--tag", "good", "--note", "mine", "--archive")
    assert kdlab_cli(*asked)[:2] == (0, "r1: good · mine · archived\n")
    assert "r1" not in kdlab_cli("runs")[1]
    shown = json.loads(kdlab_cli("runs", "--all", "--json")[1])["runs"]
    assert [row["run_id"] for row in shown] == ["r2", "r1"]
    assert kdlab_cli("mark", "r1", "--untag", "good", "--unarchive")[1] == "r1: mine\n"
    code, out, err = kdlab_cli("delete", "r1", "r2")
    assert (code, out) == (2, "")
    assert "there is no terminal to ask in" in err
    code, out, err = kdlab_cli("delete", "r1", "r1", "--yes")
    assert (code, out.count("deleted: r1")) == (0, 1)
    assert [run.id for run in runs()] == ["r2"]


@pytest.mark.parametrize(
    ("answer", "left"), [("y\n", []), ("n\n", ["r1"]), ("\n", ["r1"]), ("", ["r1"])]
)  # the last is Ctrl-D
def test_who_is_asked_says_yes_or_keeps_it(add_run, kdlab_cli, monkeypatch, answer, left):
    add_run()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: answer, raising=False)
    kdlab_cli("delete", "r1")
    assert [run.id for run in runs()] == left
