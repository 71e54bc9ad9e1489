"""Documents of a run: its start event, costs of the student, model cards and pictures."""

import json
import traceback
from pathlib import Path

import torch

from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.runs import LoggedData, OverviewWritten, RunStarted
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.setup import TrainingSetup
from kdlab.models.exported import load_exported
from kdlab.models.model import read_card
from kdlab.report.machine import git_commit, machine, versions
from kdlab.report.model_card import model_card
from kdlab.run.handle.run import Run
from kdlab.run.outputs.comparison import overview
from kdlab.run.outputs.examination import examine
from kdlab.run.outputs.export_formats import costs_beside
from kdlab.train.result import Costs, MemberResult

_EXAMINED = 1000  # test images at most, when a run ends


def announcement(
    setup: TrainingSetup, name: str, run_id: str, tracking_uri: str | None
) -> RunStarted:
    """Return the event that starts a run."""
    spec, data = setup.spec, setup.data
    return RunStarted(
        run_id=run_id,
        experiment=name,
        group=spec.tracking.experiment or name,
        spec=spec.to_dict(),
        spec_hash=setup.spec_hash,
        members=[m.name for m in spec.members()],
        machine=machine(),
        versions=versions(),
        git=git_commit(),
        thresholds=list(spec.soft_labels.bounds(spec.train.batch)),
        dataset=LoggedData(
            name=data.name,
            digest=data.digest,
            classes=len(data.classes),
            shape=list(data.shape),
            train=len(data.train),
            validation=len(data.validation),
            test=len(data.test),
        ),
        tracking_uri=tracking_uri,
    )


class StudentCosts:
    """Costs of students and their teachers, measured once for each kind of network."""

    def __init__(self, setup: TrainingSetup) -> None:
        self._setup = setup
        self._known: dict[str, Costs] = {}

    def __call__(self, student: Path, emit: Emit, *, taught: bool) -> Costs:
        """Return costs of an exported student; empty, with a warning, if measuring fails."""
        setup = self._setup
        try:
            kind = json.dumps([read_card(student)["model"], taught])
            if kind not in self._known:
                data = setup.data
                teacher = setup.teacher if taught else None
                # The next member's random state stays as it is; no GPU is touched.
                with torch.random.fork_rng(devices=[]):
                    model = load_exported(student)
                    self._known[kind] = costs_beside(
                        model, teacher, len(data.classes), data.shape
                    )
            return self._known[kind]
        except Exception as error:  # of a user's network: the training goes on
            emit(Warned(message=f"The costs of the student are unknown: {error}"))
            return {}


def write_card(
    result: MemberResult, setup: TrainingSetup, name: str, run_id: str, folder: Path
) -> list[str]:
    """Write the model card; return paths of it, of students and their cards, for MLflow."""
    card = folder / "model_card.md"
    text = model_card(
        result,
        experiment=name,
        run_id=run_id,
        dataset=setup.data.name,
        spec=setup.spec.to_dict(),
        network=_network(Path(result.model_path)),
        spec_hash=setup.spec_hash,
        teacher_top1=result.teacher_top1,
    )
    card.write_text(text, encoding="utf-8")
    students = [result.model_path, result.best_path]
    return [*students, str(card), *(str(Path(p).with_suffix(".json")) for p in students)]


def _network(student: Path) -> str:
    """Return the type of an exported student, without adapters around its blocks."""
    model = read_card(student)["model"]
    inner = model["student"] if model["type"] == "models/adapted" else model
    return str(inner["type"])


def draw_overview(run: RunFolder, setup: TrainingSetup, emit: Emit) -> None:
    """Draw curves, a table and mistakes of all trainings, for MLflow."""
    try:
        files = overview(Run(run))
        inspection = examine(run, "test", _EXAMINED, setup)
        for finding in inspection.findings():
            emit(finding)
        files["examination.html"] = inspection.page()
        for name, text in files.items():
            (run.path / name).write_text(text, encoding="utf-8")
    except Exception as error:  # a picture never fails a run that has its result
        traceback.print_exc()
        emit(Warned(message=f"No overview was drawn: {error!r}"))
        return
    emit(OverviewWritten(files=[str(run.path / name) for name in files]))
