"""A run's events in a real MLflow on sqlite, also when MLflow is away for a time."""

import json
import re

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from PIL import Image
from tests_support import event

from kdlab.cluster.reader.student_reader import FIGURES
from kdlab.events.log import EventLog
from kdlab.tracking import VIEW
from kdlab.tracking.follow import follow
from kdlab.tracking.in_mlflow import MlflowLocation
from kdlab.tracking.names import METRICS, training_name, trial_name
from kdlab.tracking.writer import Writer

RESULT = {
    "last": {"top1": 90.0, "top5": 99.0},
    "best": {"top1": 91.0},
    "validation_best": 92.0,
    "best_epoch": 2,
    "train_seconds": 3.0,
    "rolled_back": 0,
    "steps": 20,
    "costs": {"student": {"parameters": 31_434, "latency_ms": 0.74}},
}


def started(uri, members):
    return {
        "run_id": "r1",
        "experiment": "quickstart",
        "group": "my group",
        "tracking_uri": uri,
        "spec": {
            "train": {"lr": 0.1},
            "data": {"type": "data/digits"},
            "student": {"type": "timm/resnet10t"},
            "teacher": {"model": {"type": "models/cifar_resnet", "depth": 14}},
            "seeds": [0],
        },
        "spec_hash": "abc",
        "members": members,
        "machine": {"cores": 2},
        "versions": {"torch": "2"},
        "git": "f" * 40,
        "dataset": {"name": "data/digits", "digest": "d1", "train": 1, "validation": 1,
                    "test": 1, "classes": 10},
    }  # fmt: skip


@pytest.fixture
def folder(runs):
    run = runs / "r1"
    run.mkdir()
    (run / "spec.yaml").write_text("train: {lr: 0.1}\n")
    (run / "student.safetensors").write_bytes(b"weights")
    (run / "student.json").write_text("{}")
    return run


def uri_of(folder):
    return f"sqlite:///{folder.parent}/mlflow.db"


def say(log, kind, **facts):
    log.emit(event(kind, **facts))


@pytest.mark.long
def test_images_that_are_watched_are_pictures_of_steps(folder):
    """Each picture is written once, also when its event is read again."""
    strip = folder / "watched.png"
    Image.new("RGB", (3 * 96, 96), "#3b82c4").save(strip)
    log = EventLog(folder / "events.jsonl")
    facts = started(uri_of(folder), ["served/seed0"])
    facts["spec"]["train"]["epochs"] = 61  # more than pictures are made of
    say(log, "run_started", **facts)
    labels = ["cat", "<b>dog</b>", "a name that is much too long for its cell"]
    say(log, "images_chosen", path=str(strip), side=96, labels=labels)
    looks = {"said": labels, "shares": [90.0, 50.0, 40.0]}
    say(log, "images_answered", member="teacher", step=0, epoch=0, **looks)
    say(log, "member_started", member="served/seed0", source="served", seed=0)
    for epoch in range(1, 62):
        member = {"member": "served/seed0", "epoch": epoch, "step": 10 * epoch}
        say(log, "images_answered", **member, **looks)
    writer = Writer(folder)
    writer.step()
    writer.read.lines.offset = writer.state["offset"] = 0
    writer.step()
    client = MlflowClient(uri_of(folder))
    run = writer.state["runs"]["served/seed0"]
    pictures = [artifact.path for artifact in client.list_artifacts(run, "images")]
    full = sorted(p for p in pictures if p.endswith(".png"))
    assert len(full) == 61 // 3 + 1
    assert [re.search(r"step[+%](\d+)[+%]", p)[1] for p in full].count("610") == 1
    picture = client.download_artifacts(run, full[0], str(folder))
    assert Image.open(picture).width > 300


VERDICT = {"before": 60.0, "after": 90.0, "gained": 30.0, "sentence": "the teacher helped"}
CHECKS = [
    {"code": "KD-D01", "result": "issue"},
    {"code": "KD-D08", "result": "tip"},
    {"code": "KD-T02", "result": "issue"},
]
ENDED = {"student_top1": 90.0, "teacher_top1": 95.0, "wall_seconds": 7.0}


def tell(folder, members, state="finished", uri=None):
    log = EventLog(folder / "events.jsonl")
    say(log, "run_started", **started(uri or uri_of(folder), members))
    for member in members:
        say(log, "member_started", member=member, source="served", seed=0)
        for step in range(1, 21):
            say(log, "step_logged", member=member, epoch=0, step=step, loss=1 / step, lr=0.1,
                samples_per_second=10.0, volume=64,
            )  # fmt: skip
        say(log, "machine_used", cpu=80.0, memory=1.5, gpus=[(40.0, 2.5)])
        say(log, "epoch_done", member=member, epoch=1, step=20, validation_top1=92.0,
                 samples_lost=0, samples_repeated=0)  # fmt: skip
        artifacts = [str(folder / "student.safetensors")]
        result = RESULT | {"model_path": artifacts[0]}
        say(log, "member_done", member=member, result=result, artifacts=artifacts)
    say(
        log,
        "run_done",
        state=state,
        result={"student_top1": 90.0, "checks": CHECKS} if state == "finished" else None,
    )
    log.close()


def all_runs(folder):
    client = MlflowClient(uri_of(folder))
    experiment = client.get_experiment_by_name("my group")
    runs = client.search_runs([experiment.experiment_id])
    return client, {r.data.tags.get("kdlab.member", "r1"): r for r in runs}


def test_one_member_is_one_run(folder):
    tell(folder, ["served/seed0"])
    writer = Writer(folder)
    writer.step()
    assert writer.done
    client, runs = all_runs(folder)
    run = runs["r1"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "resnet10t taught by cifar_resnet-14 · r1"
    assert run.data.params["train.lr"] == "0.1"
    assert run.data.metrics["test/top1"] == 90.0
    assert run.data.metrics["validation/best_top1"] == 92.0
    assert run.data.metrics["what_it_costs/student_parameters"] == 31_434
    assert run.data.tags["mlflow.source.git.commit"] == "f" * 40
    assert run.data.tags["kdlab.version.torch"] == "2"
    assert run.data.tags["kdlab.checks"] == "KD-D01 KD-T02"
    assert run.inputs.dataset_inputs[0].dataset.digest == "d1"
    history = client.get_metric_history(run.info.run_id, "learning/loss")
    assert [(m.step, round(m.value * m.step, 6)) for m in history] == [
        (s, 1) for s in range(1, 21)
    ]
    used = {
        name: client.get_metric_history(run.info.run_id, f"system/{name}")[0]
        for name in ("cpu_percent", "memory_gib", "gpu_0_percent", "gpu_0_gib")
    }
    assert [metric.value for metric in used.values()] == [80.0, 1.5, 40.0, 2.5]
    assert {metric.step for metric in used.values()} <= {0, 1, 2}  # seconds since it began
    names = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert {"spec.yaml", "student.safetensors", "result.json"} <= names


def test_several_members_are_children(folder):
    tell(folder, ["none/seed0", "served/seed0"])
    Writer(folder).step()
    _, runs = all_runs(folder)
    assert set(runs) == {"r1", "none/seed0", "served/seed0"}
    parent = runs["r1"].info.run_id
    assert runs["r1"].data.metrics["system/cpu_percent"] == 80.0
    assert [runs[name].info.run_name for name in ("r1", "none/seed0", "served/seed0")] == [
        "quickstart · r1", "plain resnet10t", "resnet10t taught by cifar_resnet-14"
    ]  # fmt: skip
    assert runs["served/seed0"].data.tags["mlflow.parentRunId"] == parent
    assert runs["served/seed0"].data.params["member.source"] == "served"


def test_an_experiment_has_a_view_of_its_runs_with_what_decides_first(folder):
    """MLflow's pages read `state`; those before 3.17 read the fields beside the name."""
    log = EventLog(folder / "events.jsonl")
    say(log, "run_started", **started(uri_of(folder), ["served/seed0"]))
    writer = Writer(folder)
    writer.step()
    client = MlflowClient(uri_of(folder))
    tags = client.get_experiment_by_name("my group").tags
    saved = json.loads(tags[f"mlflow.sharedViewState.{VIEW}"])
    assert (saved["name"], saved["createdAt"]) == (VIEW, 0)
    state = json.loads(saved["state"])
    assert state.items() <= saved.items()
    first = [f"metrics.`test/{name}`" for name in (
        "top1", "plain_top1", "gained_with_teacher", "teacher_top1"
    )]  # fmt: skip
    assert state["selectedColumns"][:4] == first
    assert state["columnOrder"][2:7] == [*first, "duration"]
    names = {name.removeprefix("metrics.").strip("`") for name in state["selectedColumns"]}
    assert names <= set(METRICS.values())
    table = 1400 - 254 - 73  # without MLflow's menu and check boxes
    assert sum(state["columnWidths"][name] for name in state["columnOrder"][:7]) <= table
    assert MlflowLocation.read(folder).view


def test_a_server_that_keeps_its_experiments_from_changes_is_written_to(
    folder, monkeypatch
):
    def refuses(*arguments):
        raise MlflowException("PERMISSION_DENIED")

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", refuses)
    tell(folder, ["served/seed0"])
    Writer(folder).step()
    assert all_runs(folder)[1]["r1"].info.status == "FINISHED"


def test_parameters_begin_with_those_that_one_looks_for(folder):
    """MLflow's page of a run shows parameters in the order of writing."""
    log = EventLog(folder / "events.jsonl")
    facts = started(uri_of(folder), ["none/seed0", "served/seed0"])
    facts["spec"] = {"about": "x", "expects": None, "kept": 0.0} | facts["spec"]
    say(log, "run_started", **facts)
    say(log, "member_started", member="served/seed0", source="served", seed=0)
    Writer(folder).step()
    assert list(all_runs(folder)[1]["served/seed0"].data.params) == [
        *("member.source", "member.seed", "student.type", "teacher.model.type"),
        *(
            "teacher.model.depth",
            "train.lr",
            "about",
            "kept",
            "data.type",
            "seeds",
            "expects",
        ),
    ]


@pytest.mark.parametrize("ends", [(25.5, 34.5), (None, None)])
def test_the_run_of_a_comparison_has_what_decides(folder, ends):
    """Top-1 of the plain and the taught student, and the gain, are metrics."""
    log = EventLog(folder / "events.jsonl")
    say(log, "run_started", **started(uri_of(folder), ["none/seed0", "served/seed0"]))
    verdict = VERDICT | dict(zip(("low", "high"), ends, strict=True))
    say(log, "run_done", state="finished", result=ENDED | {"verdict": verdict})
    Writer(folder).step()
    data = all_runs(folder)[1]["r1"].data
    interval = dict(zip(("test/gained_low", "test/gained_high"), ends, strict=True))
    assert data.metrics == {
        "test/top1": 90.0,
        "test/plain_top1": 60.0,
        "test/gained_with_teacher": 30.0,
        **{name: end for name, end in interval.items() if end is not None},
        "test/teacher_top1": 95.0,
        "speed/wall_seconds": 7.0,
    }
    assert data.tags["kdlab.verdict"] == VERDICT["sentence"]


def test_a_run_shows_curves_while_its_trainings_go_on(folder):
    """Its teacher and each source's first seed have curves, not only once the run ends."""
    log, writer = EventLog(folder / "events.jsonl"), Writer(folder)
    members = ["none/seed0", "none/seed1", "served/seed0", "served/seed1"]
    say(log, "run_started", **started(uri_of(folder), members))
    for number, member in enumerate(["teacher", *members]):
        if member != "teacher":
            say(log, "member_started", member=member, source="any", seed=0)
        say(log, "step_logged", member=member, epoch=0, step=1, loss=float(number), lr=0.1)
    say(log, "teacher_measured", member="teacher", split="validation", top1=10.0)
    say(log, "teacher_measured", member="teacher", split="test", top1=99.0)
    say(log, "epoch_done", member="served/seed0", epoch=1, step=2, validation_top1=50.0)
    say(log, "epoch_done", member="served/seed1", epoch=1, step=2, validation_top1=51.0)
    writer.step()
    runs = all_runs(folder)[1]
    assert runs["r1"].info.status == "RUNNING"
    assert runs["r1"].data.metrics == {
        "learning/loss_teacher": 0.0,
        "learning/loss_plain": 1.0,
        "learning/loss_served": 3.0,
        "learning/validation_top1_served": 50.0,
        "test/teacher_top1": 99.0,
    }
    assert runs["served/seed1"].data.metrics["learning/loss"] == 4.0


def test_a_single_training_shows_its_own_curves_and_its_teachers(folder):
    log, writer = EventLog(folder / "events.jsonl"), Writer(folder)
    say(log, "run_started", **started(uri_of(folder), ["served/seed0"]))
    say(log, "step_logged", member="teacher", epoch=0, step=1, loss=3.0, lr=0.1)
    writer.step()
    assert all_runs(folder)[1]["r1"].data.metrics == {"learning/loss_teacher": 3.0}
    say(log, "member_started", member="served/seed0", source="served", seed=0)
    say(log, "step_logged", member="served/seed0", epoch=0, step=1, loss=2.0, lr=0.1)
    writer.step()
    metrics = all_runs(folder)[1]["r1"].data.metrics
    assert metrics["learning/loss"] == 2.0
    assert "learning/loss_served" not in metrics


@pytest.mark.parametrize(("state", "status"), [("stopped", "KILLED"), ("failed", "FAILED")])
def test_how_it_ended(folder, state, status):
    tell(folder, ["served/seed0"], state)
    Writer(folder).step()
    assert all_runs(folder)[1]["r1"].info.status == status


def test_what_could_not_be_written_is_written_later_and_once(folder, monkeypatch):
    tell(folder, ["served/seed0"])
    calls = 0
    real = MlflowClient.log_batch

    def fails_at_first(self, *arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 2:  # after the run was created and described
            raise OSError("the disk is full")
        return real(self, *arguments, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", fails_at_first)
    with pytest.raises(OSError, match="disk is full"):
        Writer(folder).step()
    writer = Writer(folder)  # another process, later
    writer.step()
    assert writer.done
    client, runs = all_runs(folder)
    assert len(runs) == 1
    history = client.get_metric_history(runs["r1"].info.run_id, "learning/loss")
    assert [m.step for m in history] == list(range(1, 21))


def test_follows_a_run_step_by_step_and_a_resumed_one_goes_on(folder):
    log = EventLog(folder / "events.jsonl")
    writer = Writer(folder)
    assert writer.step() == 0
    say(log, "run_started", **started(uri_of(folder), ["served/seed0"]))
    say(log, "member_started", member="served/seed0", source="served", seed=0)
    assert writer.step() == 2
    say(log, "run_done", state="stopped")
    writer.step()
    assert writer.done
    say(log, "run_started", **started(uri_of(folder), ["served/seed0"]))
    say(log, "run_done", state="finished")
    Writer(folder).step()
    _, runs = all_runs(folder)
    assert len(runs) == 1
    assert runs["r1"].info.status == "FINISHED"
    assert json.loads((folder / "tracking.json").read_text())["done"]


@pytest.mark.long
def test_what_a_resumed_run_trains_on_reaches_mlflow(folder):
    """The defect D1: the follower of a resumed run read that it was done, and ended."""
    tell(folder, ["served/seed0"], state="stopped")
    follow(Writer(folder))
    log = EventLog(folder / "events.jsonl")
    say(log, "run_started", **started(uri_of(folder), ["served/seed0"]))
    say(log, "step_logged", member="served/seed0", epoch=1, step=21, loss=0.5, lr=0.1)
    say(log, "run_done", state="finished")
    follow(Writer(folder))
    client, runs = all_runs(folder)
    history = client.get_metric_history(runs["r1"].info.run_id, "learning/loss")
    assert [m.step for m in history] == list(range(1, 22))
    assert runs["r1"].info.status == "FINISHED"


def test_all_that_a_reader_counts_reaches_mlflow(folder):
    log = EventLog(folder / "events.jsonl")
    say(log, "run_started", **started(uri_of(folder), ["served/seed0"]))
    say(log, "member_started", member="served/seed0", source="served", seed=0)
    counted = {name: number + 1.0 for number, name in enumerate(FIGURES)}
    say(
        log,
        "step_logged",
        member="served/seed0",
        epoch=0,
        step=1,
        samples_seen=64,
        **counted,
    )
    say(log, "epoch_done", member="served/seed0", epoch=1, step=1, samples_per_second=99.0)
    say(log, "run_done", state="finished")
    Writer(folder).step()
    metrics = all_runs(folder)[1]["r1"].data.metrics
    expected = {METRICS[name]: value for name, value in counted.items()}
    expected |= {"speed/samples_seen": 64, "speed/samples_per_second_so_far": 99.0}
    assert expected.items() <= metrics.items()


def test_names_say_who_learns_from_whom():
    spec = started("", [])["spec"]
    taught = "resnet10t taught by cifar_resnet-14"

    def names(*members):
        return [training_name(spec, member, members) for member in members]

    assert names("none/seed0", "served/seed0") == ["plain resnet10t", taught]
    assert names("none/seed0", "in_process/seed0", "served/seed0") == [
        "plain resnet10t", f"in_process · {taught}", f"served · {taught}"
    ]  # fmt: skip
    assert names("none/seed0", "none/seed1", "served/seed0", "served/seed1") == [
        "seed 0 · plain resnet10t", "seed 1 · plain resnet10t",
        f"seed 0 · {taught}", f"seed 1 · {taught}",
    ]  # fmt: skip
    three = spec | {"teacher": [spec["teacher"]] * 3}
    assert training_name(three, "served/seed0", ["served/seed0"]).endswith("by 3 teachers")
    local = {"student": spec["student"]}  # methods of local models
    assert (
        training_name(local, "ec_dnn_l/seed0", ["ec_dnn_l/seed0"]) == "ec_dnn_l · resnet10t"
    )
    assert training_name({}, "none/seed0", ["none/seed0"]) == "plain"
    tried = {"train.lr": 0.1, "loss": "losses/kl"}
    assert trial_name(3, tried) == "trial 3 · lr 0.1, loss losses/kl"
    assert trial_name(3, {}) == "trial 3"


def test_no_tracking_writes_nothing(folder):
    log = EventLog(folder / "events.jsonl")
    say(log, "run_started", **started(None, ["m"]))
    writer = Writer(folder)
    writer.step()
    assert writer.done
    assert "uri" not in writer.state
    assert MlflowClient(uri_of(folder)).get_experiment_by_name("my group") is None
    # Resumed, and tracked from there on.
    say(log, "run_started", **started(uri_of(folder), ["m"]))
    say(log, "run_done", state="finished")
    again = Writer(folder)
    again.step()
    assert again.done
    assert all_runs(folder)[1]["r1"].info.status == "FINISHED"
