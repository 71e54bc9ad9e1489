"""Write a run to MLflow: a parent run, and a child run per member where there are several."""

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

from kdlab.config.load import flat
from kdlab.events.ensemble import ErrorsMeasured, RoundClosed
from kdlab.events.event import Event
from kdlab.events.images import ImagesAnswered, ImagesChosen
from kdlab.events.log import parse
from kdlab.events.runs import (
    MachineUsed,
    MemberDone,
    MemberStarted,
    MethodsCompared,
    OverviewWritten,
    RunDone,
    RunStarted,
    TeacherMeasured,
)
from kdlab.events.training import Continued, EpochDone, Paused, SettingsChanged, StepLogged
from kdlab.tracking import names
from kdlab.tracking.event_writer import STATES, EventWriter
from kdlab.tracking.logged_model import log_student
from kdlab.tracking.names import COST, LEARNING, METRICS, PLAIN, SPEED, metric
from kdlab.tracking.sheet import sheet
from kdlab.tracking.store import cleaned

_MAX_METRICS = 1000
_TEACHER = "teacher"  # `member` of the events of its training
_MOST_SHEETS = 30  # pictures of one training
_EPOCH_METRICS = ("validation_top1", "validation_top5", "samples_lost", "samples_repeated")
_OF_SEVERAL = (  # in the order on MLflow's page of the run
    *("student_top1", "before", "gained", "low", "high", "teacher_top1"),
    *("wall_seconds", "samples_per_second"),
)
_LOOK_METRICS = {  # of local and global models, over iterations
    "chosen": "test/error_local",
    "global_": "test/error_global",
    "validation_global": "validation/error_global",
    "diff_lg": "diff_lg",
    "diff_lc": "diff_lc",
    "parallel_s": "parallel_s",
}


class Writer(EventWriter):
    """Writes the events of one run.

    `tags` are added to its own, `name` replaces its usual name in MLflow, `weights` logs networks
    as artifacts.
    """

    def __init__(
        self,
        run_folder: Path,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        *,
        weights: bool = True,
    ) -> None:
        state: dict[str, Any] = {
            "runs": {},  # MLflow run by member; "" is the parent
            "described": [],  # members whose params and tags are written
            "images": None,  # watched images, and below the teacher's predictions
            "teacher_said": None,
            "models": {},  # model of MLflow, by MLflow run
            "drawn": {},  # newest step with a picture, by MLflow run
        }
        super().__init__(run_folder, state)
        self.tags, self.name, self.weights = dict(tags or {}), name, weights
        self._metrics: dict[str, list[Metric]] = {}

    def discard(self) -> None:
        self._metrics.clear()

    # Events

    def write(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._on_run_started(event)
            case MemberStarted():
                self._on_member_started(event)
            case MemberDone():
                self._on_member_done(event)
            case MethodsCompared():
                self.flush()
                for path in event.artifacts:
                    self.client.log_artifact(self.state["runs"][""], path)
            case OverviewWritten():
                self._on_overview_written(event)
            case ImagesChosen():
                self.state["images"] = event.facts()
            case ImagesAnswered():
                self._on_images_answered(event)
            case RunDone():
                self._on_run_done(event)
            case _:
                self._write_metrics(event)

    def _write_metrics(self, event: Event) -> None:
        runs = self.state["runs"]
        match event:
            case StepLogged():
                self._collect(event, METRICS)
                self._add_above(event, "loss", event.loss, event.step)
            case EpochDone():
                self._collect(event, _EPOCH_METRICS)
                self._add_above(event, "validation_top1", event.validation_top1, event.step)
                if event.member in runs:
                    rate = {f"{SPEED}/samples_per_second_so_far": event.samples_per_second}
                    self._add(runs[event.member], rate, event.time, event.step)
            case ErrorsMeasured():
                facts = event.facts()
                errors = {
                    n: facts[k] for k, n in _LOOK_METRICS.items() if facts[k] is not None
                }
                self._add(runs[event.member], errors, event.time, event.iterations)
            case RoundClosed():
                counts = {
                    METRICS["loss"]: event.loss,
                    f"{LEARNING}/models": float(len(event.models)),
                }
                self._add(runs[event.member], counts, event.time, event.iterations)
                self._add_above(event, "loss", event.loss, event.iterations)
            case MachineUsed():  # MLflow shows these in a separate tab
                used = {"system/cpu_percent": event.cpu, "system/memory_gib": event.memory}
                for k, (percent, gib) in enumerate(event.gpus):
                    used |= {f"system/gpu_{k}_percent": percent, f"system/gpu_{k}_gib": gib}
                self._add(runs[""], used, event.time, int(event.time - self.state["began"]))
            case TeacherMeasured(split="test"):
                self._add(runs[""], {METRICS["teacher_top1"]: event.top1}, event.time, 0)
            case SettingsChanged():
                values = {f"control/{name}": value for name, value in event.values.items()}
                self._add(runs[event.member], values, event.time, event.step)
            case Paused() | Continued():
                paused = {"control/paused": float(isinstance(event, Paused))}
                self._add(runs[event.member], paused, event.time, event.step)

    def _on_run_started(self, event: RunStarted) -> None:
        self.state |= {"members": event.members, "started": event.facts()}
        self.state.setdefault("began", event.time)
        if "" in self.state["runs"]:  # resumed or retried: the same MLflow run continues
            self.client.update_run(self.state["runs"][""], status="RUNNING")
        else:
            self.state["experiment_id"] = self.experiment(event.group)
            spec, members = event.spec, event.members
            single = len(members) == 1 and names.training_name(spec, members[0], members)
            name = f"{single or event.experiment} · {event.run_id[-4:]}"
            self._create(event, "", self.name or name, self.tags)
        self._describe("", event.facts())

    def _on_member_started(self, event: MemberStarted) -> None:
        member = event.member or ""
        if len(self.state["members"]) == 1:
            self.state["runs"][member] = self.state["runs"][""]
            return
        if member not in self.state["runs"]:
            tags = {"mlflow.parentRunId": self.state["runs"][""], "kdlab.member": member}
            spec, members = self.state["started"]["spec"], self.state["members"]
            name = names.training_name(spec, member, members)
            self._create(event, member, name, tags)
        extra = {"member.source": str(event.source), "member.seed": str(event.seed)}
        self._describe(member, self.state["started"], extra)

    def _on_member_done(self, event: MemberDone) -> None:
        run = self.state["runs"][event.member]
        result = event.result
        scores = {
            "student_top1": result["last"]["top1"],
            "student_top5": result["last"]["top5"],
            "student_top1_best": result["best"]["top1"],
            "validation_top1_best": result["validation_best"],
            "best_epoch": result["best_epoch"],
            "train_seconds": result["train_seconds"],
            "samples_rolled_back": result["rolled_back"],
            "teacher_top1": result.get("teacher_top1"),
            "global_top1": result.get("global_top1"),
        }
        final = {METRICS[k]: float(v) for k, v in scores.items() if v is not None}
        final |= {metric(k): float(v) for k, v in result.get("more", {}).items()}
        for who, cost in result.get("costs", {}).items():
            final |= {f"{COST}/{who}_{name}": float(value) for name, value in cost.items()}
        self._add(run, final, event.time, result["steps"])
        self.flush()
        # Once, also where MLflow failed after it.
        if self.weights and run not in self.state["models"]:
            student = Path(result["model_path"])
            name = str(event.member).replace("/", "-")
            experiment, steps = self.state["experiment_id"], result["steps"]
            self.state["models"][run] = log_student(
                self.client, run, experiment, student, steps, name
            )
            self.save()
        for path in event.artifacts:
            if self.weights or not path.endswith(".safetensors"):
                self.client.log_artifact(run, path)
        if run != self.state["runs"][""]:
            self.client.set_terminated(run, "FINISHED", int(event.time * 1000))

    def _on_images_answered(self, event: ImagesAnswered) -> None:
        """Log a picture of the watched images, at most about 30 a training, with the last epoch."""
        if event.member == _TEACHER:
            self.state["teacher_said"] = event.facts()
            return
        run = self.state["runs"].get(event.member)
        chosen, teacher = map(_parsed, (self.state["images"], self.state["teacher_said"]))
        epochs = int(self.state["started"]["spec"]["train"]["epochs"])
        interval = -(-epochs // _MOST_SHEETS)
        due = event.epoch % interval == 0 or event.epoch == epochs
        if run is None or not isinstance(chosen, ImagesChosen) or not due:
            return
        if event.step <= self.state["drawn"].get(run, -1):  # MLflow would store it twice
            return
        try:
            taught = teacher if isinstance(teacher, ImagesAnswered) else None
            drawn = sheet(chosen, event, taught)
        except OSError:  # the file was removed; the rest is worth writing
            logging.exception("no picture of step %d", event.step)
            return
        stamp = int(event.time * 1000)
        self.client.log_image(
            run, drawn, key="test/watched images", step=event.step, timestamp=stamp
        )
        self.state["drawn"][run] = event.step
        self.save()

    def _on_overview_written(self, event: OverviewWritten) -> None:
        """Set the overview as the description; its pictures are artifacts."""
        parent = self.state["runs"][""]
        files = {Path(path).name: Path(path) for path in event.files}
        note = files.pop("note.md").read_text(encoding="utf-8")
        for name, path in files.items():
            self.client.log_artifact(parent, str(path))
            shown = f"(get-artifact?path={name}&run_uuid={parent})"
            note = note.replace(f"({name})", shown)
        self.client.set_tag(parent, "mlflow.note.content", note)

    def _on_run_done(self, event: RunDone) -> None:
        parent = self.state["runs"][""]
        result = event.result
        if result:
            verdict = result.get("verdict") or {}
            facts = {**result, **verdict}
            # A single training has written everything but the time.
            keys = _OF_SEVERAL if len(self.state["members"]) > 1 else ["wall_seconds"]
            values = {METRICS[k]: facts[k] for k in keys if facts.get(k) is not None}
            if verdict:
                self.client.set_tag(parent, "kdlab.verdict", verdict["sentence"])
            issues = [
                check["code"]
                for check in result.get("checks", ())
                if check["result"] == "issue"
            ]
            if issues:
                self.client.set_tag(parent, "kdlab.checks", " ".join(issues))
            self._add(parent, values, event.time, 0)
            self.client.log_dict(parent, result, "result.json")
        if event.error:
            self.client.set_tag(parent, "kdlab.error", str(event.error)[:5000])
        self.flush()
        for name, run in self.state["runs"].items():
            if name == "" or self.client.get_run(run).info.status == "RUNNING":
                ended = int(event.time * 1000)
                self.client.set_terminated(run, STATES[event.state], ended)
        self.state["done"] = True

    # MLflow

    def _create(self, event: Event, member: str, name: str, tags: dict[str, str]) -> None:
        """Create a run in MLflow, saved at once so that a retry does not create another."""
        all_tags = tags | {"kdlab.run_id": self.folder.name}
        run = self.create(event, self.state["experiment_id"], name, all_tags)
        self.state["runs"][member] = run
        self.save()

    def _describe(
        self, member: str, event: Mapping[str, Any], extra: dict[str, str] | None = None
    ) -> None:
        """Log spec as params, environment as tags, data set as input, spec file as artifact."""
        if member in self.state["described"]:
            return
        run = self.state["runs"][member]
        pairs = names.in_order([*(extra or {}).items(), *flat(event["spec"])])
        params = [Param(cleaned(key), str(value)[:6000]) for key, value in pairs]
        tags = {
            "kdlab.experiment": event["experiment"],
            "kdlab.spec_hash": event["spec_hash"],
            **{f"kdlab.machine.{k}": v for k, v in event["machine"].items()},
            **{f"kdlab.version.{k}": v for k, v in event["versions"].items()},
            "mlflow.source.name": f"kdlab run {event['experiment']}",
            "mlflow.source.type": "JOB",
            "mlflow.user": os.environ.get("USER", "unknown"),
        }
        if event["git"]:
            tags["mlflow.source.git.commit"] = event["git"]
        self.client.log_batch(
            run, params=params, tags=[RunTag(k, str(v)) for k, v in tags.items()]
        )
        data = event["dataset"]
        counts = {k: data[k] for k in ("train", "validation", "test", "classes")}
        dataset = Dataset(
            name=data["name"],
            digest=data["digest"],
            source_type="local",
            source=json.dumps({"kdlab": event["spec"]["data"]}),
            profile=json.dumps(counts),
        )
        tag = InputTag("mlflow.data.context", "training")
        self.client.log_inputs(run, datasets=[DatasetInput(dataset=dataset, tags=[tag])])
        self.client.log_artifact(run, str(self.folder / "spec.yaml"))
        self.state["described"].append(member)
        self.save()

    def _collect(self, event: StepLogged | EpochDone, keys: Iterable[str]) -> None:
        run = self.state["runs"].get(event.member)
        if run is None:  # the teacher's training is not a run of this experiment
            return
        facts = event.facts()
        values = {METRICS[k]: facts[k] for k in keys if facts.get(k) is not None}
        self._add(run, values, event.time, event.step)

    def _add_above(self, event: Event, key: str, value: float | None, step: int) -> None:
        """Add a curve to the parent run, so that it has one from its first step on.

        It shows the teacher's training, or with several trainings the first of each source.
        """
        several = self.state["members"] if len(self.state["members"]) > 1 else []
        source = (event.member or "").partition("/seed")[0]
        of_source = [member for member in several if member.partition("/seed")[0] == source]
        if value is not None and event.member == (of_source or [_TEACHER])[0]:
            name = f"{METRICS[key]}_{'plain' if source == PLAIN else source}"
            self._add(self.state["runs"][""], {name: value}, event.time, step)

    def _add(self, run: str, values: dict[str, float], time: float, step: int) -> None:
        stamp = int(time * 1000)
        waiting = self._metrics.setdefault(run, [])
        waiting += [
            Metric(key, float(value), stamp, step)
            for key, value in values.items()
            if not math.isnan(float(value))
        ]
        if len(waiting) >= _MAX_METRICS:
            self.flush()

    def flush(self) -> None:
        for run, metrics in self._metrics.items():
            for start in range(0, len(metrics), _MAX_METRICS):
                self.client.log_batch(run, metrics=metrics[start : start + _MAX_METRICS])
        self._metrics.clear()


def _parsed(facts: Mapping[str, Any] | None) -> Event | None:
    return None if facts is None else parse(facts)
