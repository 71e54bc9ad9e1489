"""One member of an ensemble experiment: what it needs before, around and after its workers."""

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
from kdlab.methods.ensemble.local_job import LocalJob, UnitCosts, own_folder
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
from kdlab.soft_labels.source import (
    SoftLabelSource,
    SourceContext,
    TeacherPool,
)
from kdlab.train.evaluate import Accuracy, evaluate
from kdlab.train.lineage import Odometer
from kdlab.train.recalibration import take_statistics_again
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult


@dataclass(frozen=True, slots=True)
class EnsembleRun:
    """One member of a run: a variant with a seed."""

    method: EnsembleSettings
    setup: TrainingSetup
    member: Member
    prices: UnitCosts | None = None  # of its workers' work

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
        """A worker's local data."""
        shard = Shard(self.method.shards, worker, self.workers, self.recipe.batch)
        return self.setup.samples(
            self.member,
            shard=shard,
            epochs=epochs or self.recipe.epochs,
            seed=self.method.shards.order(self.member.seed, worker),
        )

    @property
    def timetable(self) -> RoundSchedule:
        """The same for all workers: iterations of the smallest local data set."""
        batches = min(self.samples(k).plan.batches for k in range(self.workers))
        iterations = self.variant.iterations or self.recipe.epochs * batches
        return self.variant.aggregation.timetable(iterations, self.method.looks)

    def check(self) -> None:
        """Workers, data and timetable, before a start.

        Raises:
            BadInput: what is wrong with them.
        """
        images = len(self.setup.data.validation)
        why = self.variant.aggregation.unfit(self.timetable, images)
        # All do as many iterations as the smallest local data set allows.
        sizes = [len(self.samples(k).plan.ids) for k in range(self.workers)]
        if why is None and min(sizes) * 20 < max(sizes):
            why = (
                f"The local data sets have {min(sizes)} to {max(sizes)} images; all workers do "
                "as many iterations as the smallest allows, so nearly all data would go unused. "
                "Raise method.shards.concentration."
            )
        if why is not None:
            raise BadInput(f"{self.member.source_name}: {why}")
        if self.method.stacked:
            check_stackable(self.fresh(0), self.setup.data.shape)

    def warn_of_unseen_classes(self, emit: Emit) -> None:
        """Which workers' local data lacks some classes, and how many."""
        data, unseen = self.setup.data, list[str]()
        for worker in range(self.workers):
            seen = np.unique(data.labels[self.samples(worker).plan.ids])
            if missing := len(data.classes) - len(seen):
                unseen.append(f"worker {worker} {missing}")
        if unseen:
            emit(
                Warned(
                    message=f"Of {len(data.classes)} classes some are not in the local data: "
                    f"{', '.join(unseen)}. Those models cannot know them by themselves; their "
                    "ensemble can. Raise method.shards.concentration for more even shares."
                )
            )

    def model_spec(self, worker: int) -> ModelSpec:
        models = self.method.models
        return models[worker] if models else self.spec.student

    def _built(self, worker: int) -> Normalised:
        data = self.setup.data
        return self.model_spec(worker).build(len(data.classes), data.shape[0], refit=True)

    def fresh(self, worker: int) -> Normalised:
        """A worker's model with its first weights."""
        equal = self.variant.aggregation.averages
        if self.method.start is not None:
            equal = self.method.start == "equal"
        with torch.random.fork_rng():
            torch.manual_seed(self.member.seed + (0 if equal else 1_000_003 * worker))
            model = self._built(worker)
        data = self.setup.data
        fit_pixel_mean(model, data.inputs, data.train)  # alike, whatever each one's data
        return model

    def scratch(self, device: torch.device) -> Callable[[int], Normalised]:
        """One place for models of others; made anew only when they are of another kind."""
        held: dict[str, Normalised] = {}

        def give(worker: int) -> Normalised:
            name = repr(self.model_spec(worker))
            if name not in held:
                held.clear()
                with torch.random.fork_rng():
                    held[name] = self._built(worker).to(device)
            return held[name]

        return give

    def worker(
        self,
        number: int,
        folder: Path,
        emit: Emit,
        changes: ChangeQueue | None = None,
        pulse: Callable[[int], None] = lambda step: None,
    ) -> LocalWorker:
        """A worker as it begins; what it left in its folder is loaded with its first order."""
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
        """The source of a worker's batches, from where it stands."""
        job = worker.job
        folder = own_folder(job.folder, job.worker)
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

    # What became of it

    def result(self, outcome: TrainingOutcome, folder: Path) -> MemberResult:
        """Test, export, and put together what a member reports."""
        data, recipe = self.setup.data, self.recipe
        by_worker = {file.worker: file for file in outcome.models}
        last = outcome.looks[-1]
        smallest = min(by_worker, key=lambda k: (outcome.losses.get(k, float("inf")), k))
        validated = dict(zip(last.models, last.validation_locals, strict=True))
        best = min(by_worker, key=lambda k: (validated.get(k, float("inf")), k))
        chosen = best if self.method.final == "validation" else smallest

        def tested(worker: int) -> tuple[Normalised, Accuracy]:
            model = self.loaded(by_worker[worker])
            batch = recipe.evaluate_batch
            return model, evaluate(model, data, data.test, batch)

        model, accuracy = tested(chosen)
        path, best_path = folder / "student.safetensors", folder / "best.safetensors"
        facts = {"worker": chosen, "test_top1": accuracy.top1}
        export(model, self.model_spec(chosen), path, data, **facts)
        best_model, best_accuracy = tested(best)
        export(best_model, self.model_spec(best), best_path, data, worker=best)
        whole = self._global(list(by_worker.values()), folder)
        global_ = evaluate(whole, data, data.test, recipe.evaluate_batch)
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
        """Samples of the steps that a worker did and did again: what it had kept was older."""
        with closing(Odometer(own_folder(folder, worker) / "odometer")) as odometer:
            return odometer.undone * self.samples(worker).plan.batch

    def loaded(self, file: ModelFile, *, as_global: bool = False) -> Normalised:
        """A local model with its final weights, or the global one where weights are averaged.

        They are the same where every worker is reset to the average.
        """
        whole, recipe = fetch(file, WHOLE), self.recipe
        with torch.random.fork_rng():
            model = self._built(file.worker)
        model.net.load_state_dict(whole if as_global and whole else fetch(file))
        model.to(recipe.chosen_device()).eval()
        if self.variant.aggregation.averages and (as_global or not whole):
            images, batch = self.method.recalibrate, recipe.evaluate_batch
            take_statistics_again(model, self.samples(file.worker), images, batch)
        return model

    def _global(self, models: list[ModelFile], folder: Path) -> torch.nn.Module:
        """The global model: exported as one network, or as a list of teachers."""
        if self.variant.aggregation.averages:
            only = self.loaded(models[0], as_global=True)  # all know it, or the first does
            path = folder / "global.safetensors"
            export(only, self.model_spec(0), path, self.setup.data)
            return only
        members = []
        for file in models:
            path = folder / "ensemble" / f"worker-{file.worker}.safetensors"
            path.parent.mkdir(exist_ok=True)
            model, spec = self.loaded(file), self.model_spec(file.worker)
            export(model, spec, path, self.setup.data, worker=file.worker)
            own = spec.without_weights().to_dict()
            known = {k: v for k, v in own.items() if v is not None}
            members.append({"model": known | {"weights": str(path)}})
        card = {"teacher": members}
        (folder / "ensemble.yaml").write_text(yaml.safe_dump(card, sort_keys=False))
        equal = Combination.from_weights([1.0] * len(models))
        whole = combined([self.loaded(file) for file in models], equal)
        return whole.to(self.recipe.chosen_device()).eval()
