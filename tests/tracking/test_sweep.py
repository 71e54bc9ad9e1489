"""A sweep in MLflow: a run for it, and within that one for each trial, written once."""

import pytest
from mlflow import MlflowClient
from tests_support import event

from kdlab.events.log import EventLog
from kdlab.tracking.sweep import SweepWriter

RUN = {
    "experiment": "quickstart", "group": "small sweep", "spec_hash": "abc",
    "members": ["none/seed0"], "machine": {"cores": 2}, "versions": {"torch": "2"},
    "spec": {
        "train": {"lr": 0.1, "epochs": 1}, "data": {"type": "data/digits"},
        "student": {"type": "timm/resnet10t"}, "teacher": None, "seeds": [0],
    },
    "dataset": {"name": "data/digits", "digest": "d1", "train": 1, "validation": 1,
                "test": 1, "classes": 10},
}  # fmt: skip
RESULT = {
    "last": {"top1": 90.0, "top5": 99.0}, "best": {"top1": 91.0}, "validation_best": 92.0,
    "best_epoch": 1, "train_seconds": 3.0, "rolled_back": 0, "steps": 20,
}  # fmt: skip


class Case:
    """A sweep's folder with the log of it, and MLflow's store beside the folder."""

    def __init__(self, runs):
        self.runs, self.uri = runs, f"sqlite:///{runs}/mlflow.db"
        self.folder = runs / "sweeps" / "small"
        self.folder.mkdir(parents=True)
        (self.folder / "sweep.yaml").write_text("trials: 4\n")
        self.log, self.client = EventLog(self.folder / "events.jsonl"), None

    def say(self, kind, **facts):
        self.log.emit(event(kind, member=None, **facts))

    def starts(self, uri="", **more):
        of = {"sampler": "tpe", "pruner": None, "experiment": "quickstart"}
        space = {"train.lr": {"low": 0.1, "high": 0.5, "log": False, "times": None}}
        self.say(
            "sweep_started", study="small", sweep="sweeps/lr", group="small sweep",
            tracking_uri=self.uri if uri == "" else uri, spec_hash="abc", optuna="4",
            objectives=["validation_top1"], directions=["maximize"],
            spec=of | {"simulation": None, "space": space} | more,
        )  # fmt: skip

    def trained(self, path, loss=1.0, done=True):
        """Write the files that a training of the sweep leaves in its folder."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "spec.yaml").write_text("train: {lr: 0.1}\n")
        log, member = EventLog(path / "events.jsonl"), "none/seed0"
        log.emit(event("run_started", run_id=path.name, tracking_uri=self.uri, **RUN))
        log.emit(event("member_started", member=member, source="none", seed=0))
        log.emit(event("step_logged", member=member, epoch=0, step=1, loss=loss, lr=0.1))
        if done:
            log.emit(event("member_done", member=member, result=RESULT, artifacts=[]))
            log.emit(event("run_done", state="finished", result={"wall_seconds": 4.0}))

    def trial(self, number):
        return self.folder / "trials" / str(number)

    def written(self):
        """Write the events to MLflow, and return its runs by name."""
        writer = SweepWriter(self.folder)
        writer.step()
        return self.runs_by_name()

    def runs_by_name(self):
        self.client = MlflowClient(self.uri)
        experiment = self.client.get_experiment_by_name("small sweep")
        every = self.client.search_runs([experiment.experiment_id])
        return {run.info.run_name: run for run in every}


@pytest.fixture
def case(runs):
    return Case(runs)


def test_a_sweep_is_a_run_with_what_it_searches(case):
    case.starts()
    (run,) = case.written().values()
    assert run.info.run_name == "small"
    assert run.info.status == "RUNNING"
    assert run.data.tags["kdlab.sweep"] == "small"
    assert run.data.tags["kdlab.version.optuna"] == "4"
    params = run.data.params
    assert (params["of"], params["sampler"]) == ("quickstart", "tpe")
    assert params["objectives"] == "validation_top1"
    assert (
        params["space/train.lr"] == "{'low': 0.1, 'high': 0.5}"
    )  # without what is not set
    assert [f.path for f in case.client.list_artifacts(run.info.run_id)] == ["sweep.yaml"]


def test_a_trial_that_trains_is_a_run_within_it_with_its_own_events(case):
    case.starts()
    path = case.trial(0)
    case.say("trial_started", number=0, values={"train.lr": 0.2}, run=str(path), why="new")
    case.trained(path)
    case.say(
        "trial_done", number=0, state="complete", ended=1, of_trials=4, run=str(path),
        set={"train.lr": 0.2}, values_found={"validation_top1_best": 92.0, "speed": 3.0},
    )  # fmt: skip
    runs = case.written()
    sweep, trial = runs["small"], runs["trial 0 · lr 0.2"]
    tags = trial.data.tags
    assert tags["mlflow.parentRunId"] == sweep.info.run_id
    assert (tags["kdlab.trial"], tags["kdlab.trial.why"]) == ("0", "new")
    assert tags["set/train.lr"] == "0.2"
    assert tags["kdlab.trial.state"] == "complete"
    assert trial.info.status == "FINISHED"
    metrics = trial.data.metrics
    assert metrics["learning/loss"] == 1.0
    assert metrics["validation/best_top1"] == 92.0  # its training has said it
    assert metrics["result/speed"] == 3.0  # the sweep alone counts this
    history = case.client.get_metric_history(sweep.info.run_id, "validation/best_top1")
    assert [(m.step, m.value) for m in history] == [(0, 92.0)]
    models = case.client.list_artifacts(trial.info.run_id)
    assert not [f for f in models if f.path.endswith(".safetensors")]


def test_trials_under_way_are_followed_and_survive_the_writers_end(case):
    case.starts()
    path = case.trial(2)
    case.say("trial_started", number=2, values={}, run=str(path), why="new")
    case.trained(path, done=False)
    first = SweepWriter(case.folder)
    first.step()  # its folder is known from here on
    first.step()
    assert case.runs_by_name()["trial 2"].data.metrics["learning/loss"] == 1.0
    again = SweepWriter(case.folder)  # another process, later
    assert list(again.writers) == ["2"]
    EventLog(path / "events.jsonl").emit(
        event("step_logged", member="none/seed0", epoch=0, step=2, loss=0.5, lr=0.1)
    )
    again.step()
    run = case.runs_by_name()["trial 2"].info.run_id
    history = case.client.get_metric_history(run, "learning/loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 0.5)]
    assert len(case.runs_by_name()) == 2  # no second one was made


@pytest.mark.parametrize(("state", "status"), [("pruned", "KILLED"), ("failed", "FAILED")])
@pytest.mark.long
def test_how_a_trial_ended(case, state, status):
    case.starts()
    path = case.trial(0)
    case.say("trial_started", number=0, values={}, run=str(path), why="new")
    case.trained(path, done=False)
    case.say(
        "trial_done", number=0, state=state, ended=1, of_trials=4, run=str(path), set={}
    )
    trial = case.written()["trial 0"]
    assert trial.info.status == status
    assert trial.data.tags["kdlab.trial.state"] == state


def test_one_that_is_tried_again_says_so(case):
    case.starts()
    path = case.trial(0)
    case.say("trial_started", number=0, values={}, run=str(path), why="new")
    case.trained(path, done=False)
    case.say("trial_requeued", number=0, why="its worker was lost", tries=1)
    trial = case.written()["trial 0"]
    assert trial.info.status == "KILLED"
    assert trial.data.tags["kdlab.trial.state"] == "tried again"


def test_one_that_ended_before_it_had_an_event_is_left_out(case):
    case.starts()
    path = case.trial(0)
    case.say("trial_started", number=0, values={}, run=str(path), why="new")
    case.say(
        "trial_done", number=0, state="failed", ended=1, of_trials=4, run=str(path), set={}
    )
    case.say("trial_requeued", number=0, why="it is gone", tries=1)
    assert set(case.written()) == {"small"}


def test_a_simulated_trial_has_its_values_alone(case):
    case.starts(experiment=None, simulation="edl_dist/laptop")
    case.say("trial_started", number=7, values={"lt": 4}, run=None, why="new")
    case.say(
        "trial_done", number=7, state="complete", ended=1, of_trials=4, run=None,
        set={"lt": 4}, values_found={"teachers": 3.0, "volume_max": None},
    )  # fmt: skip
    runs = case.written()
    assert runs["small"].data.params["of"] == "edl_dist/laptop"
    trial = runs["trial 7 · lt 4"]
    assert trial.data.params == {"lt": "4"}
    assert trial.data.metrics == {"soft_labels/teachers": 3.0}
    assert trial.info.status == "FINISHED"
    history = case.client.get_metric_history(
        runs["small"].info.run_id, "soft_labels/teachers"
    )
    assert [(m.step, m.value) for m in history] == [(7, 3.0)]


def test_fresh_seeds_are_runs_that_say_what_they_confirm(case):
    case.starts()
    for setting, seed in (("best", 11), ("as_it_is", 12)):
        path = case.folder / "confirmed" / f"{setting}-{seed}"
        case.say(
            "repeat_started", name=path.name, setting=setting, seed=seed, run=str(path),
            set={"train.lr": 0.2} if setting == "best" else {},
        )  # fmt: skip
        case.trained(path)
    failed = str(case.folder / "confirmed" / "as_it_is-12")
    case.say("repeat_done", run=failed, state="failed")
    case.written()  # its runs are known from here on, and written at the next look
    runs = case.written()
    best = runs["confirmed best · seed 11"]
    as_it_is = runs["as it is, confirmed · seed 12"]
    assert best.data.tags["kdlab.confirms"] == "best"
    assert best.data.tags["kdlab.seed"] == "11"
    assert best.data.tags["set/train.lr"] == "0.2"
    assert as_it_is.info.status == "FAILED"


def ended(case, confirmed=None):
    """Write a sweep of one simulated trial, whose best is saved in two files of one name."""
    case.starts()
    case.say("trial_started", number=1, values={"lr": 0.2}, run=None, why="new")
    case.say(
        "trial_done", number=1, state="complete", ended=1, of_trials=1, run=None,
        set={"lr": 0.2}, values_found={},
    )  # fmt: skip
    saved = [case.folder / "saved" / f"trial-{n}" / "best.yaml" for n in (1, 2)]
    for path in saved:
        path.parent.mkdir(parents=True)
        path.write_text("x: 1\n")
    figure = case.folder / "history.png"
    figure.write_bytes(b"png")
    result = {
        "best": {"number": 1, "values": {"validation_top1": 92.5}, "set": {"lr": 0.2}},
        "confirmed": confirmed,
        "figures": [str(figure)],
        "saved": [str(path) for path in saved],
    }
    case.say("sweep_done", state="finished", result=result)


def test_what_a_sweep_found_stands_on_its_page(case):
    ended(case, {"best": {"mean": 91.0}, "as_it_is": {"mean": None}})
    runs = case.written()
    sweep, trial = runs["small"], runs["trial 1 · lr 0.2"]
    assert sweep.info.status == "FINISHED"
    assert sweep.data.metrics == {"best/validation_top1": 92.5, "confirmed/best": 91.0}
    assert sweep.data.tags["best/lr"] == "0.2"
    note = sweep.data.tags["mlflow.note.content"]
    assert note.startswith("Best: trial 1, {'lr': 0.2}")
    assert f"run_uuid={sweep.info.run_id}" in note
    assert trial.data.tags["kdlab.best"] == "true"
    names = {f.path for f in case.client.list_artifacts(sweep.info.run_id)}
    assert names == {"sweep.yaml", "history.png", "saved", "result.json"}
    saved = {f.path for f in case.client.list_artifacts(sweep.info.run_id, "saved")}
    assert saved == {"saved/trial-1", "saved/trial-2"}  # two files of one name


def test_a_sweep_that_is_gone_on_with_is_the_same_run(case):
    ended(case)
    writer = SweepWriter(case.folder)
    writer.step()
    assert writer.done
    case.starts()
    again = SweepWriter(case.folder)
    assert not again.done  # the sweep may continue
    again.step()
    runs = case.runs_by_name()
    assert len(runs) == 2
    assert runs["small"].info.status == "RUNNING"
    case.say("sweep_done", state="stopped", error="by the user")
    again.step()
    sweep = case.runs_by_name()["small"]
    assert sweep.info.status == "KILLED"
    assert sweep.data.tags["kdlab.error"] == "by the user"


def test_a_sweep_that_nobody_wants_tracked_is_not(case):
    case.starts(uri=None)
    case.say("sweep_done", state="finished")
    writer = SweepWriter(case.folder)
    writer.step()
    assert writer.done
    assert MlflowClient(case.uri).get_experiment_by_name("small sweep") is None


def test_what_mlflow_refused_is_written_later_and_once(case, monkeypatch):
    ended(case)
    really, calls = MlflowClient.set_terminated, []

    def fails_at_first(self, *arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:  # of the trial, whose run is made by then
            raise OSError("the disk is full")
        return really(self, *arguments, **options)

    monkeypatch.setattr(MlflowClient, "set_terminated", fails_at_first)
    writer = SweepWriter(case.folder)
    with pytest.raises(OSError, match="disk is full"):
        writer.step()
    writer.step()
    runs = case.runs_by_name()
    assert len(runs) == 2
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
