"""`method: {type: methods/ensemble}`: parallel training of local models."""

from dataclasses import dataclass
from pathlib import Path

import torch

from kdlab.config import register
from kdlab.data.watched import watched_rows
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining, MethodSpec, Victims
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.model_workers import InProcessWorkers, ModelWorkers
from kdlab.methods.ensemble.processes import Processes
from kdlab.methods.ensemble.round_driver import RoundCheckpoint, RoundDriver
from kdlab.methods.ensemble.settings import EnsembleSettings
from kdlab.models.exported import load_exported
from kdlab.models.model import check_fit
from kdlab.report.local_curves import local_curves
from kdlab.report.methods import ErrorCurve, markdown, picture, rows
from kdlab.report.table import METHODS
from kdlab.train.evaluate import answers
from kdlab.train.result import MemberResult


@register("methods/ensemble")
@dataclass(frozen=True, kw_only=True)
class Ensemble(EnsembleSettings, MethodSpec):
    """Parallel training of local models, joined by `aggregation` (EC-DNN, MA-DNN, E-DNN, S-DNN)."""

    files = (
        "direction.json",
        "curves.png",
        "histograms.png",
        "ensemble.yaml",
        "global.safetensors",
        "global.json",
    )

    def check(self, setup: TrainingSetup) -> None:
        for member in setup.spec.members():
            EnsembleRun(self, setup, member).check()
        data = setup.data
        for model in self.models:
            with torch.random.fork_rng():
                built = model.build(len(data.classes), data.shape[0], refit=True)
                what = f"{model.component} of a worker"
                check_fit(built, data.shape, len(data.classes), what)

    def train(self, training: MemberTraining) -> MemberResult:
        """Train the local models, each in its own process or one after the other here."""
        member_run = EnsembleRun(self, training.setup, training.member)
        member_run.warn_of_unseen_classes(training.emit)
        processes: ModelWorkers
        ranks: Victims = list
        if self.processes:
            processes = Processes(training, self.hang_s)
            ranks = processes.targets
        else:
            processes = InProcessWorkers(
                lambda number: member_run.worker(
                    number, training.folder, training.emit, training.changes
                ),
                lambda worker: member_run.source(
                    worker, training.run.run_id, training.pool
                ),
                stacked=self.stacked,
            )
        with training.chaos(training.pool, ranks):
            job = member_run.training(training.folder, training.emit)
            outcome = RoundDriver(job, processes).run()
        result = member_run.result(outcome, training.folder)
        data = member_run.setup.data
        if len(watched := watched_rows(data)):
            predictions = answers(load_exported(Path(result.model_path)), data, watched)
            training.emit(predictions.but(step=result.steps, epoch=result.epochs))
        local_curves(outcome.looks, training.folder, training.member.name)
        return result

    def summarise(self, spec: ExperimentSpec, run: RunFolder) -> list[Path]:
        """Write comparison.png and comparison.md of the variants, if there are several."""
        courses: dict[str, list[ErrorCurve]] = {}
        for member in spec.members():
            checkpoint = RoundCheckpoint.read(run.member(member.name))
            curves = courses.setdefault(member.source_name, [])
            curves.append(ErrorCurve(checkpoint.looks, checkpoint.account))
        if len(courses) < 2:
            return []
        picture(courses, run.path / "comparison.png")
        (run.path / METHODS).write_text(markdown(rows(courses)), encoding="utf-8")
        return [run.path / "comparison.png", run.path / METHODS]
