"""Documents of a run and comparisons of runs, from logs that the tests write."""

import html
import json
from types import SimpleNamespace

import pytest
import yaml
from tests_support import event, student_card
from written_runs import result_of

import kdlab
from kdlab.errors import BadInput
from kdlab.events.checks import CheckMade
from kdlab.events.general import Warned
from kdlab.events.log import EventLog, read_all, select
from kdlab.events.runs import OverviewWritten
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.models.model import export
from kdlab.models.patch_net import PatchNet
from kdlab.report import page
from kdlab.report.table import NO_SPEEDS
from kdlab.run.handle.run import Run, create_folder
from kdlab.run.outputs import comparison, documents, tracking_sync
from kdlab.run.outputs.comparison import Comparison, compare, overview
from kdlab.run.outputs.documents import (
    StudentCosts,
    announcement,
    draw_overview,
    write_card,
)
from kdlab.run.outputs.tracking_sync import sync_all
from kdlab.train.evaluate import Accuracy


def setup_of(*settings):
    return TrainingSetup(kdlab.load("smoke/in_process", *settings).spec)


def report(folder, member="in_process/seed0", top1=60.0):
    return result_of(
        member, last=Accuracy(top1, 90.0, 100), teacher_top1=80.0,
        model_path=str(folder / "student.safetensors"),
        best_path=str(folder / "best.safetensors"),
    )  # fmt: skip


def student(folder, data, width=8):
    spec = PatchNet(patch=4, width=width)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("student", "best"):
        export(spec.build(10, 1), spec, folder / f"{name}.safetensors", data)
    return folder / "student.safetensors"


# Documents of one run


def test_the_first_event_says_what_is_trained_on_what_and_by_what():
    setup = setup_of("seeds=[0, 1]")
    started = announcement(setup, "smoke/in_process", "r1", "sqlite:///x")
    assert (started.run_id, started.experiment) == ("r1", "smoke/in_process")
    assert started.group == "smoke"
    assert started.members == ["in_process/seed0", "in_process/seed1"]
    assert started.spec == setup.spec.to_dict()
    assert started.spec_hash == setup.spec_hash
    assert started.tracking_uri == "sqlite:///x"
    data = setup.data
    assert started.dataset.digest == data.digest
    assert (started.dataset.classes, started.dataset.shape) == (10, [1, 8, 8])
    assert started.dataset.train == len(data.train)
    assert started.versions["kdlab"]
    assert len(started.thresholds) == 2
    ungrouped = setup_of({"tracking.experiment": None})
    assert announcement(ungrouped, "mine", "r1", None).group == "mine"


def test_costs_are_measured_once_for_students_of_one_kind(digits, tmp_path, monkeypatch):
    measured = []

    def beside(model, teacher, classes, shape):
        measured.append((teacher, classes, shape))
        return {"student": {"parameters": float(len(measured))}}

    monkeypatch.setattr(documents, "costs_beside", beside)
    setup = setup_of()
    setup.__dict__["teacher"] = "the teacher"
    data, _ = digits
    small, same = student(tmp_path / "a", data), student(tmp_path / "b", data)
    wider = student(tmp_path / "c", data, width=16)
    costs, log = StudentCosts(setup), []
    assert costs(small, log.append, taught=True) == costs(same, log.append, taught=True)
    assert measured == [("the teacher", 10, (1, 8, 8))]
    assert costs(small, log.append, taught=False) == {"student": {"parameters": 2.0}}
    assert measured[1][0] is None
    costs(wider, log.append, taught=True)
    assert len(measured) == 3
    assert log == []


def test_a_student_that_cannot_be_measured_is_a_warning_and_no_end(tmp_path):
    log = []
    costs = StudentCosts(setup_of())(tmp_path / "no.safetensors", log.append, taught=False)
    assert costs == {}
    (warned,) = log
    assert isinstance(warned, Warned)
    assert warned.message.startswith("The costs of the student are unknown")


def test_a_model_card_names_what_it_is_of_and_goes_to_mlflow_with_its_students(
    digits, tmp_path
):
    student(tmp_path, digits[0])
    setup = setup_of()
    result = report(tmp_path)
    files = write_card(result, setup, "smoke/in_process", "r1", tmp_path)
    text = (tmp_path / "model_card.md").read_text()
    assert "# models/patch_net distilled on" in text
    assert "Student of run `r1` (smoke/in_process), member `in_process/seed0`" in text
    assert f"spec `{setup.spec_hash}`" in text
    assert "80.00 % top-1 on test" in text
    assert "480 (0 lost, 0 repeated)" in text
    spec = text.partition("```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(spec) == json.loads(json.dumps(setup.spec.to_dict()))
    names = ["student.safetensors", "best.safetensors", "model_card.md", "student.json",
             "best.json"]  # fmt: skip
    assert files == [str(tmp_path / name) for name in names]


def test_adapters_around_its_blocks_are_not_the_network(tmp_path):
    inner = {"type": "models/adapted", "student": {"type": "models/resnet"}}
    (tmp_path / "student.json").write_text(json.dumps(student_card(model=inner)))
    assert documents._network(tmp_path / "student.safetensors") == "models/resnet"


# Runs side by side


@pytest.fixture
def finished(elsewhere):
    """Write the folder of a run that has ended: its log and its results."""

    def make(*settings, members=("none/seed0",), top1=(60.0, 70.0), with_result=True):
        run, _ = create_folder(kdlab.load("smoke/none", *settings), "starting")
        log, now = EventLog(run.events), 100.0
        rows = []
        for member, right in zip(members, top1, strict=False):
            folder = run.member(member)
            folder.mkdir(parents=True)
            source = member.partition("/")[0]
            events = [
                event("member_started", member=member, source=source, seed=0),
                event("step_logged", member=member, step=8, loss=2.0, samples_seen=240),
                event("step_logged", member=member, step=16, loss=1.0, samples_seen=480),
                event("epoch_done", member=member, epoch=1, step=16, validation_top1=55.0),
                event("member_done", member=member),
            ]
            for logged in events:
                log.emit(logged)
                now += 1
            result = report(folder, member, right)
            result.write(folder)
            rows.append({
                "member": member, "source": source, "student_top1": right,
                "samples_lost": 1, "samples_repeated": 0, "samples_per_second": 565.0,
                "shares_cores": source == "served",
            })  # fmt: skip
        log.emit(event("run_done", state="finished"))
        log.close()
        if with_result:
            (run.path / "result.json").write_text(
                json.dumps({"runs": rows, "teacher_top1": 80.0})
            )
        return Run(run)

    return make


SEEDS = ("none/seed0", "none/seed1")


def test_what_differs_is_told_and_what_it_is_about_is_not(finished):
    left = finished("about=mine", "seeds=[0, 1]", members=SEEDS)
    right = finished("train.lr=0.2")
    compared = kdlab.compare(left, right)
    assert dict(compared.differences()) == {"train.lr": [0.05, 0.2], "seeds": [[0, 1], [0]]}
    first, second = compared.outcomes()
    assert first["top-1 %"].startswith("65.00 ±")
    assert second["top-1 %"] == "60.00"
    assert first["lost/repeated"] == "2/0"
    assert first["training"] == f"{left.id[-4:]} N-training (no teacher)"
    assert first["global top-1 %"] == "-"
    assert "global top-1 %" not in compared.head()
    across = {(panel.title, panel.across): panel for panel in compared.curves()}
    assert list(across) == [
        (title, over)
        for title in ("top-1 on validation", "loss on labels")
        for over in ("samples", "seconds")
    ]
    curves = across["loss on labels", "samples"].curves
    assert len(curves) == 3
    assert all(points == [(240.0, 2.0), (480.0, 1.0)] for points in curves.values())
    assert "train.lr" in str(compared)
    assert "Differences between the specs" in compared._repr_html_()
    assert compared.to_json()["runs"] == [left.id, right.id]
    assert left.id in compared.save(left.path / "page.html").read_text()


def test_what_decides_stands_first_and_the_gain_is_over_the_plain_student(finished):
    both = finished(members=("none/seed0", "served/seed0"))
    compared = Comparison([both])
    assert compared.head()[:4] == ["training", "top-1 %", "gain", "teacher %"]
    assert [(row["gain"], row["teacher %"]) for row in compared.outcomes()] == [
        ("-", "-"), ("+10.00", "80.00")
    ]  # fmt: skip
    titles = {panel.title: len(panel.curves) for panel in compared.curves()}
    assert titles["loss on labels"] == titles["loss, hinton"] == 1
    assert titles["top-1 on validation"] == 2
    plain, taught = finished(), finished("loss.temperature=2.0", members=("served/seed0",))
    assert [row["gain"] for row in kdlab.compare(plain, taught).outcomes()] == [
        "-",
        "+0.00",
    ]
    changed = finished("train.lr=0.2", members=("served/seed0",))  # its lr differs too
    assert [row["gain"] for row in kdlab.compare(plain, changed).outcomes()] == ["-", "-"]


def test_a_student_whose_teachers_had_its_cores_has_no_speed_beside_one_without(finished):
    compared = kdlab.compare(finished(), finished(members=("served/seed0",)))
    assert {row["samples/s"] for row in compared.outcomes()} == {"-"}
    assert "samples/s" not in compared.head()
    assert NO_SPEEDS in str(compared)
    assert html.escape(NO_SPEEDS) in compared.page()
    of_one = finished(members=("none/seed0", "served/seed0"))
    assert page.markdown(NO_SPEEDS) in overview(of_one)["note.md"]
    untaught = kdlab.compare(finished(), finished())
    assert {row["samples/s"] for row in untaught.outcomes()} == {"565"}
    assert NO_SPEEDS not in str(untaught)


def test_the_same_spec_twice_does_not_differ(finished):
    compared = kdlab.compare(finished(), finished())
    assert compared.differences() == []
    assert "The specs do not differ." in str(compared)
    assert "The specs do not differ." in compared._repr_html_()


def test_what_has_ended_is_compared_before_the_run_has(finished):
    run = finished("seeds=[0, 1]", members=SEEDS, with_result=False)
    (row,) = compare(run).outcomes()
    assert row["top-1 %"].startswith("65.00 ±")


def test_a_run_of_which_nothing_ended_is_a_row_of_dashes(finished):
    run = finished(members=(), with_result=False)
    row = Comparison([run, finished()]).outcomes()[0]
    assert set(row.values()) == {"-", run.id[-4:]}


def test_one_training_alone_is_not_compared(finished):
    with pytest.raises(BadInput, match="two runs or more"):
        compare(finished())
    with pytest.raises(BadInput, match="two runs or more"):
        compare()
    assert str(compare(finished("seeds=[0, 1]", members=SEEDS)).outcomes()[0]["top-1 %"])


def tracked(run, uri, **runs):
    state = {"uri": uri, "experiment_id": 7, "runs": runs, "offset": 3}
    (run.path / "tracking.json").write_text(json.dumps(state))


def test_links_are_one_for_each_store_and_show_members_where_there_are_several(finished):
    first, second, third = finished(), finished(), finished()
    tracked(first, "sqlite:///x", **{"": "a", "none/seed0": "b", "none/seed1": "c"})
    tracked(second, "sqlite:///x", **{"": "d"})
    tracked(third, "http://far:5000/", **{"": "e"})
    local, remote = kdlab.compare(first, second, third).links()
    assert local == (
        'http://127.0.0.1:5000/#/compare-runs?runs=["b", "c", "d"]&experiments=["7"]'
    )
    assert remote.startswith("http://far:5000/#/compare-runs?")
    assert "(kdlab ui)" in kdlab.compare(first, second)._repr_html_()


def test_what_is_in_mlflow_gets_the_page_and_what_is_in_none_is_refused(
    finished, monkeypatch
):
    first, second = finished(), finished("train.lr=0.2")
    with pytest.raises(BadInput, match="in MLflow yet"):
        kdlab.compare(first, second).log()
    tracked(first, "sqlite:///x", **{"": "a"})
    logged = []
    monkeypatch.setattr(comparison, "log_page", lambda *args: logged.append(args) or ["a"])
    assert kdlab.compare(first, second).log() == ["a"]
    ((states, name, text),) = logged
    assert [state.runs for state in states] == [{"": "a"}]
    assert name == "comparison.html"
    assert "Differences between the specs" in text


def test_a_run_for_mlflow_is_a_page_curves_and_a_note_with_words_as_words(finished):
    run = finished({"about": "Loss <b>low</b> | high"}, "seeds=[0, 1]", members=SEEDS)
    files = overview(run)
    assert set(files) == {"overview.html", "overview.svg", "note.md"}
    assert r"Loss \<b\>low\</b\> \| high" in files["note.md"]
    assert "| training | top-1 % | samples/s |" in files["note.md"]
    assert "![curves](overview.svg)" in files["note.md"]
    assert f"spec `{run.folder.origin().spec_hash}`" in files["note.md"]
    assert "<svg" in files["overview.svg"]


def test_the_overview_is_written_and_told(finished, monkeypatch):
    run, events = finished("seeds=[0, 1]", members=SEEDS), []
    finding = CheckMade(code="KD-R07", result="passed", title="each says each")
    page = SimpleNamespace(page=lambda: "looked at", findings=lambda: [finding])
    monkeypatch.setattr(documents, "examine", lambda *args: page)
    draw_overview(run.folder, None, events.append)
    seen, written = events
    assert seen is finding
    assert isinstance(written, OverviewWritten)
    assert (run.path / "examination.html").read_text() == "looked at"
    assert sorted(written.files) == sorted(
        str(run.path / name)
        for name in ("overview.html", "overview.svg", "note.md", "examination.html")
    )


def test_a_picture_that_fails_is_a_warning_and_the_result_stays(finished, capsys):
    run, events = finished(), []
    draw_overview(RunFolder(run.path / "nothing"), None, events.append)
    (warned,) = events
    assert isinstance(warned, Warned)
    assert warned.message.startswith("No overview was drawn")
    assert "Traceback" in capsys.readouterr().err


# What MLflow could not take


@pytest.fixture
def synced(monkeypatch):
    """Counts of events that MLflow lacks, by run; an error among them is raised."""
    missing, asked = {}, []

    def sync(folder):
        asked.append(folder)
        count = missing.get(folder, 0)
        if isinstance(count, Exception):
            raise count
        return count

    monkeypatch.setattr(tracking_sync, "sync", sync)
    return missing, asked


def test_each_run_and_sweep_is_told_of_newest_first(finished, synced, elsewhere):
    missing, _ = synced
    old, new, all_there = finished(), finished(), finished()
    for created, run in enumerate((old, new, all_there)):
        run.folder.write_status(state="finished", created=float(created), result={})
    sweep = elsewhere / "runs" / "sweeps" / "s1"
    sweep.mkdir(parents=True)
    (sweep / "sweep.yaml").touch()
    RunFolder(sweep).write_status(state="finished", result={})
    missing |= {old.path: 3, new.path: 5, sweep: OSError("disk")}
    assert sync_all().splitlines() == [
        f"{new.id}: 5 events written",
        f"{old.id}: 3 events written",
        "sweeps/s1: not written (disk); try again later",
    ]
    missing.clear()
    assert sync_all() == "MLflow has everything."


@pytest.mark.parametrize(("last", "ends"), [("run_started", 2), ("run_done", 1)])
def test_only_a_run_that_has_not_said_its_end_is_told_to_have_been_killed(
    finished, synced, last, ends
):
    """A warning about MLflow may follow the `run_done` of a run that was stopped."""
    run = finished()
    run.folder.write_status(state="stopped", exit_code=130)
    log = EventLog(run.folder.events)
    if last == "run_started":  # after an end of before
        log.emit(event("run_started"))
    log.emit(event("warned", message="MLflow is slow: kdlab runs --sync"))
    log.close()
    sync_all()
    assert len(list(select(run.folder.events, "run_done"))) == ends


def test_what_is_under_way_is_left_to_its_own_tracker(finished, synced):
    run = finished()
    run.folder.write_status(state="starting")
    with run.folder.held():
        assert sync_all() == f"{run.id}: is starting; its own tracker writes"
    assert synced[1] == []


@pytest.mark.parametrize(("written", "end"), [("running", "lost"), ("stopped", "stopped")])
def test_of_a_run_that_was_killed_the_end_is_told_once(finished, synced, written, end):
    run = finished()
    log = EventLog(run.folder.events)
    log.emit(event("run_started"))
    log.emit(event("note", message="still at work"))
    log.close()
    run.folder.write_status(state=written)
    (run.path / "lock").touch()
    for _ in range(2):
        sync_all()
        *_, before, last = read_all(run.folder.events)
        assert (last.KIND, last.state) == ("run_done", end)
        assert before.message == "still at work"
