"""One worker of Algorithm 1 of EC-DNN, and of MA-DNN, E-DNN and S-DNN, which are parts of it.

    w <- w - eta grad L(f(w; x), y)  (Eq. 5 with z-bar)      -> train
    w_bar <- {w_1, ..., w_K, 1/K}                            -> combine: relabel, or `merged`
    w <- Compression(w, w_bar, D)  (Algorithm 2, Eq. 6)      -> combine: _compress
    reset                                                    -> the checkpoint after it

It knows neither processes nor the other workers, only files of models. Every chance comes
from seed, worker and step, so it does not matter where it runs or whether it came back.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.control.cadence import Cadence, logging
from kdlab.control.loop_control import LoopControl, alone
from kdlab.control.request import ControlRequest
from kdlab.control.steering import Steering, settings_of, with_settings
from kdlab.data.plan import BatchPlan
from kdlab.data.samples import PlannedSamples, Subset
from kdlab.errors import KdlabError, RunStopped
from kdlab.events.ensemble import LocalStep, WorkerResumed
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.training import CheckpointSaved
from kdlab.losses.local import accelerated_compression, diversity_regularised, log_loss
from kdlab.losses.soft_loss import LossSpec
from kdlab.methods.ensemble.exchange import ModelFile, fetch, publish
from kdlab.methods.ensemble.relabel import Relabelled, relabel, relabel_served
from kdlab.methods.ensemble.stream import BatchPlace, Stream
from kdlab.methods.ensemble.variant import relabel_of
from kdlab.models.memory import keep_freed_memory
from kdlab.models.model import Normalised
from kdlab.papers.ec_dnn.metrics import check_ensemble
from kdlab.papers.ec_dnn.round_schedule import Round, RoundSchedule
from kdlab.soft_labels.source import Batch, SoftLabelSource, TeacherPool
from kdlab.train import checkpoint
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.aggregation.kind import AggregationSpec
from kdlab.train.aggregation.model_average import ModelAverage
from kdlab.train.compression.distillation import Distillation
from kdlab.train.recipe import Recipe, lr_at
from kdlab.train.step import Descent

_LOG_EVERY_S = 0.5


Opened = Callable[[TeacherPool, PlannedSamples, dict[str, Any], int], SoftLabelSource]
"""From {"epoch", "done"} on, with so many outputs for each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalJob:
    """What one worker is told.

    Attributes:
        worker: its number, from 0.
        model: with its first weights.
        scratch: makes an empty model of any worker's kind, for the weights of others.
        samples: of its local data.
        timetable: of all workers.
        aggregation: how the global model is made.
        loss: of soft labels, where the local training has any.
        folder: of the member; models are written below it.
        stop: whether the user asked to stop.
        steering: what the user changes while it trains.
        pulse: a sign of life, with the steps done.
        opened: a source of some samples' soft labels from the pool of local models.
    """

    worker: int
    recipe: Recipe
    model: Normalised
    scratch: Callable[[int], Normalised]
    samples: PlannedSamples
    timetable: RoundSchedule
    aggregation: AggregationSpec
    loss: LossSpec | None
    seed: int
    folder: Path
    spec_hash: str
    emit: Emit
    stop: Callable[[], bool] = lambda: False
    pulse: Callable[[int], None] = lambda step: None
    steering: Steering = field(default_factory=lambda: Steering(None, ""))
    opened: Opened | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """What a worker did in one part of a round.

    Attributes:
        round: its number.
        model: that can be fetched.
        loss: mean training loss of its steps (cross entropy with the true labels).
        steps, samples: of SGD, in the model now; those before a restart are in it too.
        wall_s: of the part, looks at validation and test not counted.
        train_s, relabel_s, compress_s: processor seconds of this process; of relabelling by a
            pool the seconds it was waited for.
        fetched_bytes: of models of others, or of the outputs a pool sent instead.
        ensemble_loss, model_losses: on the relabelled rows, of the ensemble and of each model.
    """

    round: int
    model: ModelFile
    loss: float
    steps: int
    samples: int
    wall_s: float
    train_s: float = 0.0
    relabel_s: float = 0.0
    compress_s: float = 0.0
    fetched_bytes: int = 0
    ensemble_loss: float | None = None
    model_losses: tuple[float, ...] = ()

    def facts(self) -> dict[str, Any]:
        return asdict(self)


class LocalWorker:
    def __init__(self, job: LocalJob) -> None:
        keep_freed_memory()
        self.job = job
        if job.recipe.threads is not None:
            torch.set_num_threads(job.recipe.threads)
        self.device = torch.device(job.recipe.chosen_device())
        self.model = job.model.to(self.device)
        self.descent = Descent(job.recipe, self.model, self.model, self.device)
        self.stream = Stream(job.samples)
        self.round = 0  # that is to be trained, or has been begun
        self.round_steps = 0  # of its local iterations
        self.round_samples = 0
        self._keeps = True
        self.steps = 0  # of SGD, compressing ones included
        self._kept_round = 0  # whose beginning is kept
        self._losses: list[Tensor] = []
        self._stood_s = self._stood_cpu_s = 0.0  # in pauses
        self._source: object = None
        self.loss = job.loss
        self.control = LoopControl(
            job.steering,
            settings_of(job.loss),
            step=lambda: self.steps,
            emit=lambda event: job.emit(replace(event, worker=job.worker)),
            stop=job.stop,
            pulse=job.pulse,
        )
        self.logs = logging(_LOG_EVERY_S, job.recipe.log_every_steps, self._clock)
        self.saves = Cadence(job.recipe.checkpoint_every_s)

    # Start and resume

    @property
    def checkpoints(self) -> Path:
        return self.job.folder / f"worker-{self.job.worker}" / "checkpoints"

    def go_to(self, number: int) -> None:
        """To the newest state it has for this round, or to its newest before.

        Raises:
            CheckpointError: of another spec.
        """
        found = checkpoint.load_newest(
            self.checkpoints, self.job.spec_hash, fits=lambda f: f["round"] <= number
        )
        if found is None:
            return
        tensors, facts, notes = found
        checkpoint.unpack(tensors, facts, self.model, self.descent.optimizer, rank=-1)
        self.stream = Stream(self.job.samples, facts["taken"])
        self.steps, self.round = facts["steps"], facts["round"]
        self.round_steps = facts["round_steps"]
        self.round_samples = facts["round_samples"]
        self._kept_round = self.round
        self.logs.done(self.steps)
        for note in notes:
            self.job.emit(Warned(message=note))
        self.job.emit(WorkerResumed(worker=self.job.worker, step=self.steps))

    def _save(self) -> None:
        self._refuse_bad_loss()
        tensors, facts = checkpoint.pack(self.model, self.descent.optimizer)
        facts |= {
            "taken": self.stream.taken,
            "steps": self.steps,
            "round": self.round,
            "round_steps": self.round_steps,
            "round_samples": self.round_samples,
            "spec_hash": self.job.spec_hash,
        }
        # Numbered by round first: a reset point is newer than all steps before it.
        number = self.round * 10**7 + self.round_steps
        checkpoint.save(self.checkpoints, number, tensors, facts)
        self.saves.done(self.steps)

    def measure_rate(self, seconds: float = 0.3) -> float:
        """Samples/s of local steps when nothing is waited for; leaves no trace."""
        ids = self.job.samples.batches(0)[0]
        views = torch.from_numpy(self.job.samples.views(ids, 0)).to(self.device)
        labels = torch.from_numpy(self.job.samples.labels(ids)).to(self.device)
        with torch.random.fork_rng():
            model = copy.deepcopy(self.model).train()
            own = Descent(self.job.recipe, model, model, self.device)
            steps, begin = 0, time.perf_counter()
            while steps < 3 or time.perf_counter() - begin < seconds:
                own(diversity_regularised(own.scores(views), labels, None, 0.0), 1e-3)
                steps += 1
        return steps * len(ids) / (time.perf_counter() - begin)

    # Local training

    def train(
        self,
        round_: Round,
        latest: Sequence[ModelFile],
        source: SoftLabelSource,
        pool: TeacherPool | None = None,
    ) -> RoundWork:
        """The rest of a round's local iterations (Eq. 5); publishes the model.

        Args:
            round_: of the timetable.
            latest: compressed models of the round before, whose mean is z-bar.
            source: of the batches, in the plan's order.
            pool: that serves these models; None has the worker load them.

        Raises:
            RunStopped: the user asked; the state is saved.
            KdlabError: the loss is no number any more.
        """
        if self.round != round_.number:  # it was away for some rounds
            self._at_the_start_of(round_.number)
            if latest and isinstance(self.job.aggregation, ModelAverage):
                self.model.net.load_state_dict(fetch(latest[0]))  # all begin alike
        begin, self._source = self._clock(), source
        steps = round_.train_steps - self.round_steps
        places, away, relabel_s = self.stream.ahead(steps), None, 0.0
        if round_.diversity_weight and latest and steps:
            away, relabel_s = self._relabel(places, self.job.samples, latest, pool)
        busy = self._cpu()
        before = self.round_steps
        self.model.train()
        for number, batch in enumerate(self.stream.take(source, steps)):
            z = None if away is None else away.of(number, len(batch.ids))
            self._one(batch, partial(self._local_loss, z, round_, batch))
            self.round_samples += len(batch.ids)
            self.round_steps = before + number + 1
            self._between()
        path = self._path(round_, "local")
        done = RoundWork(
            round=round_.number,
            model=publish(self.model.net, self.job.worker, path),
            loss=self._mean_loss(),
            steps=self.round_steps,
            samples=self.round_samples,
            wall_s=self._clock() - begin,
            train_s=self._cpu() - busy,
            relabel_s=relabel_s,
            fetched_bytes=0 if away is None else self._fetched(latest, away, pool),
        )
        if not round_.combines:  # nothing follows: the next round begins here
            self._begins(round_.number + 1, keep=True)
        return done

    def _begins(self, number: int, *, keep: bool) -> None:
        """A round, from the weights it has now: its reset point."""
        self.round, self.round_steps, self.round_samples = number, 0, 0
        if keep:
            self._kept_round = number
            self._save()

    def _at_the_start_of(self, number: int) -> None:
        """Where the timetable has it, whatever it has done of the rounds before.

        So all workers have the same learning rate in a round, and none sees a batch twice.
        """
        local, compressing = self.job.timetable.before(number)
        self.steps = local + compressing
        self.stream.taken = local + (compressing if self._compresses_in_line else 0)
        self.round, self.round_steps, self.round_samples = number, 0, 0

    @property
    def _compresses_in_line(self) -> bool:
        aggregation = self.job.aggregation
        return (
            isinstance(aggregation, EnsembleAggregation) and aggregation.compresses_in_line
        )

    def _local_loss(
        self, z: Tensor | None, round_: Round, batch: Batch, scores: Tensor, labels: Tensor
    ) -> Tensor:
        """Eq. 5, and the soft loss of a teacher where there is one."""
        own = None if z is None else z.to(self.device)
        loss = diversity_regularised(scores, labels, own, round_.diversity_weight)
        spec = self.loss
        if spec is None or batch.soft is None:
            return loss
        teacher = batch.soft.to(self.device, torch.float32)
        return spec.hard_weight * loss + spec.soft_weight * spec.soft(
            scores, teacher, labels
        )

    # Aggregation and compression

    def combine(
        self,
        round_: Round,
        models: Sequence[ModelFile],
        keep: bool = True,
        pool: TeacherPool | None = None,
    ) -> RoundWork:
        """Make the global model of these, and reset the local one by it.

        Args:
            round_: of the timetable.
            models: to be combined.
            keep: the reset point, on disk. With a communication every few steps not all are.
            pool: that serves these models; None has the worker load them.

        Raises:
            WeightsError: a model changed on the way.
            KdlabError: the ensemble is worse than its models are on average (Eq. 3).
        """
        self._keeps = keep
        if (self.round, self.round_steps) != (round_.number, round_.train_steps):
            self._catch_up(round_, models)
        if isinstance(self.job.aggregation, ModelAverage):
            return self._average(round_, models)
        return self._compress(round_, models, pool)

    def _catch_up(self, round_: Round, models: Sequence[ModelFile]) -> None:
        """After a restart in between: the local training is done, and was published."""
        own = next((f for f in models if f.worker == self.job.worker), models[0])
        self.model.net.load_state_dict(fetch(own))
        self._at_the_start_of(round_.number)
        self.steps += round_.train_steps
        self.stream.taken += round_.train_steps
        self.round_steps = round_.train_steps

    def _average(self, round_: Round, models: Sequence[ModelFile]) -> RoundWork:
        """MA-DNN: the weights of all, averaged."""
        begin = self._clock()
        aggregation = self.job.aggregation
        assert isinstance(aggregation, ModelAverage)
        merged = aggregation.merged([fetch(file) for file in models])
        self.model.net.load_state_dict(merged)
        if aggregation.optimizer == "reset":
            self.descent = Descent(self.job.recipe, self.model, self.model, self.device)
        return self._reset(round_, begin, Parts(fetched_bytes=self._others_bytes(models)))

    def _relabel(
        self,
        places: Sequence[BatchPlace],
        samples: PlannedSamples,
        models: Sequence[ModelFile],
        pool: TeacherPool | None,
    ) -> tuple[Relabelled, float]:
        """The mean outputs, and the seconds that took: of this processor, or of waiting."""
        if pool is None:
            busy = self._cpu()
            made = relabel(
                places, samples, models, self.job.scratch, self._rows, self._alive
            )
            return made, self._cpu() - busy
        assert self.job.opened is not None
        begin, opened = self._clock(), partial(self.job.opened, pool)
        made = relabel_served(places, samples, len(models), opened, self._alive)
        return made, self._clock() - begin

    def _fetched(
        self, models: Sequence[ModelFile], made: Relabelled, pool: TeacherPool | None
    ) -> int:
        """Bytes: of others' models, or of the outputs that a pool sent instead."""
        if pool is None:
            return self._others_bytes(models)
        relabel = relabel_of(self.job.aggregation)
        assert relabel is not None
        return relabel.bytes_per_output * made.mean.numel() * len(models)

    def _others_bytes(self, models: Sequence[ModelFile]) -> int:
        return sum(f.bytes for f in models if f.worker != self.job.worker)

    def _compress(
        self, round_: Round, models: Sequence[ModelFile], pool: TeacherPool | None
    ) -> RoundWork:
        """Algorithm 2: relabel, then p iterations on Eq. 6 from the local weights."""
        begin = self._clock()
        if not round_.compress_steps:
            return self._reset(round_, begin, Parts())
        stream, fresh = self._compression_stream(round_)
        places = stream.ahead(round_.compress_steps)
        made, relabel_s = self._relabel(places, stream.samples, models, pool)
        try:
            check_ensemble(made.loss, made.model_losses)
        except ValueError as error:
            raise KdlabError(
                f"Round {round_.number}, worker {self.job.worker}: {error}. Its pseudo labels "
                "do not belong to its images; nothing was trained on them. This is a defect "
                "of kdlab, or of a model that puts out no class scores."
            ) from error
        busy, samples = self._cpu(), 0
        self.model.train()
        for number, place in enumerate(places):
            ids = place.ids
            views = torch.from_numpy(self.job.samples.views(ids, place.epoch))
            labels = torch.from_numpy(self.job.samples.labels(ids))
            pseudo = made.of(number, len(ids)).to(self.device)
            self._one(
                Batch(place.index, ids, views, labels, None),
                partial(
                    accelerated_compression,
                    pseudo=pseudo,
                    weight=round_.compression_weight,
                ),
            )
            samples += len(ids)
            self._alive()
        if not fresh:
            self.stream.taken += len(places)
        return self._reset(
            round_,
            begin,
            Parts(
                samples=samples,
                relabel_s=relabel_s,
                compress_s=self._cpu() - busy,
                fetched_bytes=self._fetched(models, made, pool),
                ensemble_loss=made.loss,
                model_losses=tuple(made.model_losses),
            ),
        )

    def _compression_stream(self, round_: Round) -> tuple[Stream, bool]:
        """Batches to compress on, and whether they are apart from those of training.

        With all local data they go on where training stopped: a compression is training
        with one more term.
        """
        spec, samples = self._distillation(), self.job.samples
        if self._compresses_in_line:
            return self.stream, False
        number = round_.number if spec.subset == "drawn" else 0
        own = samples.plan.ids
        count = max(min(samples.plan.batch, len(own)), round(spec.mu * len(own)))
        subset = Subset(self.job.seed + 7919 * (self.job.worker + 1), number, count)
        plan = BatchPlan(
            subset.of(own),
            batch=samples.plan.batch,
            seed=self.job.seed + self.job.worker,
            epochs=round_.compress_steps,
            smallest=samples.plan.smallest,
        )
        apart = replace(samples, plan=plan, subset=subset)
        # Views of its own: epochs that local training never comes to.
        first = (round_.number + 1) * 10**6
        return Stream(apart, first * plan.batches), True

    def _distillation(self) -> Distillation:
        aggregation = self.job.aggregation
        assert isinstance(aggregation, EnsembleAggregation)
        assert isinstance(aggregation.compression, Distillation)
        return aggregation.compression

    def _reset(self, round_: Round, begin: float, parts: "Parts") -> RoundWork:
        """The new starting point: kept, and published for z-bar."""
        loss = self._mean_loss()
        self._begins(round_.number + 1, keep=self._keeps)
        return RoundWork(
            round=round_.number,
            model=publish(self.model.net, self.job.worker, self._path(round_, "reset")),
            loss=loss,
            steps=round_.compress_steps,
            samples=parts.samples,
            wall_s=self._clock() - begin,
            relabel_s=parts.relabel_s,
            compress_s=parts.compress_s,
            fetched_bytes=parts.fetched_bytes,
            ensemble_loss=parts.ensemble_loss,
            model_losses=parts.model_losses,
        )

    # Steps

    def _one(self, batch: Batch, loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._seed()
        views = batch.views.to(self.device)
        labels = batch.labels.to(self.device)
        scores = self.descent.scores(views)
        loss = loss_of(scores, labels)
        self.descent(loss, self._lr())
        self.steps += 1
        # Not the objective: that of Eq. 5 is smallest for the model that differs most.
        self._losses.append(cross_entropy(scores.detach().float(), labels))

    def one(self, batch: Batch) -> None:
        """A step of plain local training."""
        self._one(batch, cross_entropy)

    def _seed(self) -> None:
        """Dropout depends on seed, worker and step alone."""
        key = repr((self.job.seed, self.job.worker, self.steps)).encode()
        torch.manual_seed(int.from_bytes(blake2b(key, digest_size=7).digest()))

    def _lr(self) -> float:
        """The schedule runs over all steps, those of compressions included."""
        recipe, batches = self.job.recipe, self.job.samples.plan.batches
        done = self.steps / max(1, self.job.timetable.steps)
        factor = self.job.steering.lr_factor
        return factor * lr_at(recipe, done * recipe.epochs, batches)

    def _between(self) -> None:
        # Of another round it would push out the reset point that a resume goes back to.
        may = self.round == self._kept_round
        self._alive(saves=may)
        if self.logs.due(self.steps):
            self._log()
        if may:
            self._save_if_asked()
            if self.saves.due(self.steps):
                self._save()

    def _save_if_asked(self) -> None:
        if self.control.take_checkpoint_order():
            self._save()
            self.job.emit(CheckpointSaved(step=self.steps, worker=self.job.worker))

    def _alive(self, *, saves: bool = False) -> None:
        """Between batches.

        Raises:
            RunStopped: the user asked; the newest state is kept.
        """
        self.job.pulse(self.steps)
        self.job.steering.look()
        self._apply(self.control.wanted_settings())
        if self.job.steering.paused and not self.job.stop():
            self._pause(saves)
        if self.job.stop():
            if saves:
                self._save()
            raise RunStopped(f"stopped by the user after step {self.steps}")

    def _clock(self) -> float:
        """Seconds, those in pauses left out."""
        return time.perf_counter() - self._stood_s

    def _cpu(self) -> float:
        """Processor seconds, those in pauses left out."""
        return time.process_time() - self._stood_cpu_s

    def _apply(self, agreed: ControlRequest) -> None:
        """For the next step on, whatever the other local models have come to."""
        if self.control.apply(agreed):
            self.loss = with_settings(self.job.loss, self.control.settings)

    def _pause(self, saves: bool) -> None:
        """It is no training time."""

        def act(now: ControlRequest) -> None:
            self._apply(now)
            if now.save and saves:
                self._save()
                self.job.emit(CheckpointSaved(step=self.steps, worker=self.job.worker))
            elif now.save:  # when it may
                self.job.steering.wants_checkpoint = True

        begin, busy = time.perf_counter(), time.process_time()
        self.control.pause(self._source, agree=alone, act=act)
        self._stood_s += time.perf_counter() - begin
        self._stood_cpu_s += time.process_time() - busy

    def _log(self) -> None:
        self._refuse_bad_loss()
        self.job.emit(
            LocalStep(
                worker=self.job.worker,
                round=self.round,
                step=self.steps,
                of_steps=self.job.timetable.steps,
                loss=float(self._losses[-1]) if self._losses else None,
                samples_per_second=self.logs.rate(self.steps) * self.job.samples.plan.batch,
            )
        )
        self.logs.done(self.steps)

    def _refuse_bad_loss(self) -> None:
        if self._losses and not math.isfinite(float(self._losses[-1])):
            raise KdlabError(
                f"The loss of worker {self.job.worker} is {float(self._losses[-1])} near step "
                f"{self.steps}. Training cannot go on from here. Lower train.lr "
                f"({self.job.recipe.lr:g}), or aggregation.diversity_weight."
            )

    def _mean_loss(self) -> float:
        """Mean loss of the steps since the last call."""
        if not self._losses:
            return float("nan")
        mean = float(torch.stack(self._losses).mean())
        self._losses = []
        return mean

    @property
    def _rows(self) -> int:
        return self.job.recipe.evaluate_batch

    def _path(self, round_: Round, what: str) -> Path:
        name = f"worker-{self.job.worker}.{what}.safetensors"
        return self.job.folder / "rounds" / f"{round_.number:05d}" / name

    # What the model says

    @torch.inference_mode()
    def probabilities(self, inputs: Any) -> Tensor:
        """(n, C) of unaugmented images, for everybody who wants to know how good it is."""
        self.model.eval()
        found = []
        for views in _pieces(inputs, self._rows):
            self.job.pulse(self.steps)
            on_device = torch.from_numpy(views).to(self.device)
            found.append(self.model(on_device).float().softmax(1).cpu())
        return torch.cat(found)

    def train_loss(self, most: int = 5000) -> float:
        """Mean cross entropy on its local data, unaugmented; of so many images at most."""
        data, ids = self.job.samples.data, self.job.samples.plan.ids[:most]
        return log_loss(
            self.probabilities(data.inputs[ids]), torch.from_numpy(data.labels[ids])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a reset was made of."""

    samples: int = 0
    relabel_s: float = 0.0
    compress_s: float = 0.0
    fetched_bytes: int = 0
    ensemble_loss: float | None = None
    model_losses: tuple[float, ...] = ()


def _pieces(inputs: Any, rows: int) -> Iterator[Any]:
    for start in range(0, len(inputs), rows):
        yield inputs[start : start + rows]
