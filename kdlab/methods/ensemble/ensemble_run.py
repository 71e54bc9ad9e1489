"""One member of an ensemble experiment: checks, workers and their parts, and the result."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
import yaml

from kdlab.changes.queue import ChangeQueue
from kdlab.data.samples import PlannedSamples, Shard
from kdlab.errors import BadInput
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec, Member
from kdlab.methods.ensemble.compression import planned_rows
from kdlab.methods.ensemble.exchange import WHOLE, ModelFile, fetch
from kdlab.methods.ensemble.local_job import LocalJob, UnitCosts, worker_folder
from kdlab.methods.ensemble.round_driver import Training, TrainingOutcome
from kdlab.methods.ensemble.settings import EnsembleSettings
from kdlab.methods.ensemble.stacked import check_stackable
from kdlab.methods.ensemble.variant import Variant
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.models.ensemble import Combination, combined
from kdlab.models.model import ModelSpec, Normalised, export, parameters
from kdlab.models.pixel_mean import fit_pixel_mean
from kdlab.papers.ec_dnn.parallel import Network
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.soft_labels.source import SoftLabelSource, SourceContext, TeacherPool
from kdlab.train.evaluate import Accuracy, evaluate
from kdlab.train.lineage import Odometer
from kdlab.train.recalibration import recalibrate
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult


@dataclass(frozen=True, slots=True)
class EnsembleRun:
    """One member of a run: a variant with a seed."""

    method: EnsembleSettings
    setup: TrainingSetup
    member: Member
    prices: UnitCosts | None = None  # of the work of its workers

    @property
    def spec(self) -> ExperimentSpec:
        return self.setup.spec

    @property
    def variant(self) -> Variant:
        return self.method.variants(self.spec.aggregation)[self.member.source_name]

    @property
    def workers(self) -> int:
        return self.variant.workers or self.method.workers

    @property
    def recipe(self) -> Recipe:
        variant = self.variant
        recipe = variant.aggregation.local_recipe(self.spec.train)
        return recipe if variant.epochs is None else replace(recipe, epochs=variant.epochs)

    def samples(self, worker: int, epochs: int | None = None) -> PlannedSamples:
        """Return the local data of a worker."""
        shard = Shard(self.method.shards, worker, self.workers, self.recipe.batch)
        return self.setup.samples(
            self.member,
            shard=shard,
            epochs=epochs or self.recipe.epochs,
            seed=self.method.shards.order(self.member.seed, worker),
        )

    @property
    def timetable(self) -> RoundSchedule:
        """Rounds of all workers, with the iterations of the smallest local data set."""
        batches = min(self.samples(k).plan.batches for k in range(self.workers))
        iterations = self.variant.iterations or self.recipe.epochs * batches
        return self.variant.aggregation.timetable(iterations, self.method.looks)

    def check(self) -> None:
        """Check workers, data and timetable before a start.

        Raises:
            BadInput: they do not fit together.
        """
        images = len(self.setup.data.validation)
        why = self.variant.aggregation.unfit(self.timetable, images)
        sizes = [len(self.samples(k).plan.ids) for k in range(self.workers)]
        if why is None and min(sizes) * 20 < max(sizes):
            why = (
                f"The local data sets have {min(sizes)} to {max(sizes)} images. All workers do "
                "the iterations of the smallest, so nearly all data would be unused. "
                "Raise method.shards.concentration."
            )
        if why is None and self.method.final == "validation" and not images:
            why = "method.final is validation, and the data has none; set data.validation_share"
        if why is not None:
            raise BadInput(f"{self.member.source_name}: {why}")
        if self.method.stacked:
            check_stackable(self.fresh(0), self.setup.data.shape)

    def warn_of_unseen_classes(self, emit: Emit) -> None:
        """Warn of workers whose local data lacks classes."""
        data, unseen = self.setup.data, list[str]()
        for worker in range(self.workers):
            seen = np.unique(data.labels[self.samples(worker).plan.ids])
            if missing := len(data.classes) - len(seen):
                unseen.append(f"worker {worker} {missing}")
        if unseen:
            emit(
                Warned(
                    message=f"Local data lacks some of the {len(data.classes)} classes: "
                    f"{', '.join(unseen)}. Those local models cannot learn them alone. "
                    "Raise method.shards.concentration for more even shares."
                )
            )

    def model_spec(self, worker: int) -> ModelSpec:
        models = self.method.models
        return models[worker] if models else self.spec.student

    def _build(self, worker: int) -> Normalised:
        data = self.setup.data
        return self.model_spec(worker).build(len(data.classes), data.shape[0], refit=True)

    def fresh(self, worker: int) -> Normalised:
        """Build a worker's model with its initial weights."""
        equal = self.variant.aggregation.averages
        if self.method.start is not None:
            equal = self.method.start == "equal"
        with torch.random.fork_rng():
            torch.manual_seed(self.member.seed + (0 if equal else 1_000_003 * worker))
            model = self._build(worker)
        data = self.setup.data
        fit_pixel_mean(model, data.inputs, data.train)  # equal for all workers
        return model

    def scratch(self, device: torch.device) -> Callable[[int], Normalised]:
        """Return a function that gives a model for another worker's weights.

        The last model is used again where the architecture is the same.
        """
        models: dict[str, Normalised] = {}

        def model_for(worker: int) -> Normalised:
            name = repr(self.model_spec(worker))
            if name not in models:
                models.clear()
                with torch.random.fork_rng():
                    models[name] = self._build(worker).to(device)
            return models[name]

        return model_for

    def worker(
        self,
        number: int,
        folder: Path,
        emit: Emit,
        changes: ChangeQueue | None = None,
        pulse: Callable[[int], None] = lambda step: None,
    ) -> LocalWorker:
        """Make a worker at its start; its first order restores what is in its folder."""
        recipe, table = self.recipe, self.timetable
        plan = self.samples(number).plan
        epochs = max(recipe.epochs, ceil(table.steps / plan.batches))
        served = self.member.source.needs_teacher != "none"
        return LocalWorker(
            LocalJob(
                worker=number,
                recipe=recipe,
                model=self.fresh(number),
                scratch=self.scratch(torch.device(recipe.chosen_device())),
                samples=self.samples(number, epochs),
                timetable=table,
                aggregation=self.variant.aggregation,
                loss=self.spec.loss if served else None,
                seed=self.member.seed,
                folder=folder,
                spec_hash=self.setup.spec_hash,
                emit=emit,
                stop=self.setup.stop,
                pulse=pulse,
                changes=changes or ChangeQueue(),
                prices=self.prices,
                recalibrate=self.method.recalibrate,
            )
        )

    def source(
        self,
        worker: LocalWorker,
        run_id: str,
        pool: TeacherPool | None,
        stop: Callable[[], bool] | None = None,
    ) -> SoftLabelSource:
        """Build the source of a worker's batches, from its position on."""
        job = worker.job
        folder = worker_folder(job.folder, job.worker)
        folder.mkdir(parents=True, exist_ok=True)
        return self.member.source.build(
            SourceContext(
                samples=job.samples,
                student=f"{run_id}/{self.member.name}/worker{job.worker}",
                folder=folder,
                load_teacher=self.setup.load_teacher,
                pool=pool,
                report=job.emit,
                stop=stop or self.setup.stop,
                student_rate=worker.sgd.measure_rate,
                start=worker.stream.start(),
                in_group=True,
            )
        )

    def training(self, folder: Path, emit: Emit) -> Training:
        return Training(
            workers=self.workers,
            timetable=self.timetable,
            combining=self.variant.aggregation.combining,
            data=self.setup.data,
            folder=folder,
            emit=emit,
            stop=self.setup.stop,
            waits=self.method.processes and self.method.wait_for_lost,
            network=Network(bytes_per_s=self.method.gbit_per_s * 1.25e8),
            looks=self.method.looks,
        )

    # Results

    def result(self, outcome: TrainingOutcome, folder: Path) -> MemberResult:
        """Test and export the models, and return the result of the member."""
        data, recipe = self.setup.data, self.recipe
        by_worker = {file.worker: file for file in outcome.models}
        last = outcome.looks[-1]
        smallest = min(by_worker, key=lambda k: (outcome.losses.get(k, float("inf")), k))
        validated = dict(zip(last.models, last.validation_locals, strict=True))
        best = min(by_worker, key=lambda k: (validated.get(k, float("inf")), k))
        chosen = best if self.method.final == "validation" else smallest

        def test(worker: int) -> tuple[Normalised, Accuracy]:
            model = self.load(by_worker[worker])
            return model, evaluate(model, data, data.test, recipe.evaluate_batch)

        model, accuracy = test(chosen)
        path, best_path = folder / "student.safetensors", folder / "best.safetensors"
        facts = {"worker": chosen, "test_top1": accuracy.top1}
        export(model, self.model_spec(chosen), path, data, **facts)
        best_model, best_accuracy = test(best)
        export(best_model, self.model_spec(best), best_path, data, worker=best)
        global_model = self._global(list(by_worker.values()), folder)
        global_ = evaluate(global_model, data, data.test, recipe.evaluate_batch)
        account, table = outcome.account, self.timetable
        planned = (
            planned_rows(self.samples(k).plan, table, self.variant.aggregation)
            for k in range(self.workers)
        )
        return MemberResult(
            last=accuracy,
            best=best_accuracy,
            validation_last=100 - validated.get(chosen, float("nan")),
            validation_best=100 - validated.get(best, float("nan")),
            best_epoch=recipe.epochs,
            epochs=recipe.epochs,
            steps=table.steps,
            samples_per_second=account.samples / max(1e-9, account.parallel_s),
            train_seconds=account.parallel_s,
            seen=account.samples,
            lost=sum(planned) - account.samples,
            repeated=0,
            rolled_back=sum(self._rolled_back(folder, k) for k in range(self.workers)),
            figures={k: float(v) for k, v in asdict(account).items()},
            model_path=str(path),
            best_path=str(best_path),
            parameters=parameters(model),
            global_top1=global_.top1,
            global_top5=global_.top5,
            workers=self.workers,
            diff_lg=fmean(look.diff_lg for look in outcome.looks),
            more={"global_validation_top1": 100 - last.validation_global}
            if len(data.validation)
            else {},
        )

    def _rolled_back(self, folder: Path, worker: int) -> int:
        """Count the samples of steps that a worker repeated after going back to a checkpoint."""
        with closing(Odometer(worker_folder(folder, worker) / "odometer")) as odometer:
            return odometer.undone * self.samples(worker).plan.batch

    def load(self, file: ModelFile, *, as_global: bool = False) -> Normalised:
        """Load a local model with its final weights, or the global one of averaged weights.

        They are equal where every worker is reset to the average.
        """
        global_weights, recipe = fetch(file, WHOLE), self.recipe
        with torch.random.fork_rng():
            model = self._build(file.worker)
        model.net.load_state_dict(
            global_weights if as_global and global_weights else fetch(file)
        )
        model.to(recipe.chosen_device()).eval()
        if self.variant.aggregation.averages and (as_global or not global_weights):
            images, batch = self.method.recalibrate, recipe.evaluate_batch
            recalibrate(model, self.samples(file.worker), images, batch)
        return model

    def _global(self, models: list[ModelFile], folder: Path) -> torch.nn.Module:
        """Load and export the global model, as one network or as a card of teachers."""
        if self.variant.aggregation.averages:
            model = self.load(
                models[0], as_global=True
            )  # every worker has it, or the first
            path = folder / "global.safetensors"
            export(model, self.model_spec(0), path, self.setup.data)
            return model
        members = []
        for file in models:
            path = folder / "ensemble" / f"worker-{file.worker}.safetensors"
            path.parent.mkdir(exist_ok=True)
            model, spec = self.load(file), self.model_spec(file.worker)
            export(model, spec, path, self.setup.data, worker=file.worker)
            fields = spec.without_weights().to_dict()
            fields = {k: v for k, v in fields.items() if v is not None}
            members.append({"model": fields | {"weights": str(path)}})
        card = {"teacher": members}
        (folder / "ensemble.yaml").write_text(yaml.safe_dump(card, sort_keys=False))
        equal = Combination.from_weights([1.0] * len(models))
        ensemble = combined([self.load(file) for file in models], equal)
        return ensemble.to(self.recipe.chosen_device()).eval()
