"""Worker of EC-DNN's Algorithm 1, and of MA-DNN, E-DNN and S-DNN, which are parts of it.

    w <- w - eta grad L(f(w; x), y)  (Eq. 5 with z-bar)      -> train
    w_bar <- {w_1, ..., w_K, 1/K}                            -> combine: compression.py, or `merged`
    w <- Compression(w, w_bar, D)  (Algorithm 2, Eq. 6)      -> combine: compression.py
    reset                                                    -> the checkpoint after it

It knows neither processes nor the other workers, only files of models. All random numbers come
from seed, worker and step, so the result depends neither on where it runs nor on restarts.
"""

from collections.abc import Collection, Generator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from torch import Tensor

from kdlab.errors import RunStopped
from kdlab.events.ensemble import WorkerResumed
from kdlab.events.general import Warned
from kdlab.events.training import CheckpointSaved
from kdlab.methods.ensemble.compression import compress, mean_outputs, others_bytes
from kdlab.methods.ensemble.exchange import (
    MEMORY,
    SENT,
    WHOLE,
    ModelFile,
    fetch,
    publish,
    take_momentum,
)
from kdlab.methods.ensemble.local_job import (
    LocalFacts,
    LocalJob,
    RoundWork,
    WorkParts,
    worker_folder,
)
from kdlab.methods.ensemble.local_sgd import LocalSgd, LossOf
from kdlab.methods.ensemble.stream import Stream
from kdlab.models.model import Normalised
from kdlab.papers.ec_dnn.round_schedule import Round
from kdlab.soft_labels.source import Batch, SoftLabelSource
from kdlab.train import checkpoint
from kdlab.train.aggregation.kind import Weights
from kdlab.train.aggregation.weights import OWN, MergeInputs, WeightAggregation
from kdlab.train.cadence import Cadence


class LocalWorker:
    def __init__(self, job: LocalJob) -> None:
        self.job, self.sgd = job, LocalSgd(job)
        self.model = self.sgd.model
        self.stream = Stream(job.samples)  # of its batches
        self.round = 0  # current round, begun or not
        self.round_steps = 0  # local iterations of it that are done
        self.round_samples = 0
        self._keeps = True  # save the reset point of this round
        self._kept_round = 0  # round whose beginning is saved
        self.saves = Cadence(
            job.recipe.checkpoint_every_s, job.recipe.checkpoint_every_steps
        )
        start = {k: v.detach().cpu() for k, v in self.model.net.state_dict().items()}
        self.memory = job.aggregation.memory(start, self._trained_names())
        self.global_weights: dict[str, Tensor] | None = None  # where its own weights differ

    # Start and resume

    @property
    def checkpoints(self) -> Path:
        return worker_folder(self.job.folder, self.job.worker) / "checkpoints"

    def restore(self, number: int, trained: int = 0) -> None:
        """Restore the newest checkpoint of this round or of an earlier one.

        The stream, and so its source, begins behind `trained` iterations of the round.

        Raises:
            CheckpointError: it is of another spec.
        """
        self._load_newest(number)
        taken = max(self.stream.taken, self._taken_before(number) + trained)
        self.stream = Stream(self.job.samples, taken)

    def _load_newest(self, number: int) -> None:
        newest = checkpoint.load_newest(
            self.checkpoints,
            self.job.spec_hash,
            LocalFacts,
            fits=lambda facts: facts.round <= number,
        )
        if newest is None:
            return
        facts, sgd = newest.facts, self.sgd
        sgd.train_step.restore(newest.tensors, facts, rank=-1)
        remembered = {
            k.removeprefix(MEMORY): v
            for k, v in newest.tensors.items()
            if k.startswith(MEMORY)
        }
        self.memory = remembered or self.memory
        self.stream = Stream(self.job.samples, facts.taken)
        sgd.steps, self.round = facts.steps, facts.round
        self.round_steps, self.round_samples = facts.round_steps, facts.round_samples
        sgd.losses = facts.losses
        self._kept_round = self.round
        sgd.logs.done(sgd.steps)
        self.saves.done(sgd.steps)
        for note in newest.notes:
            self.job.emit(Warned(message=note))
        self.job.emit(WorkerResumed(worker=self.job.worker, step=sgd.steps))

    def _save(self) -> None:
        self.sgd.refuse_bad_loss()
        tensors, optimizer_facts = self.sgd.train_step.state()
        tensors |= {MEMORY + k: v for k, v in self.memory.items()}
        facts = LocalFacts(
            **vars(optimizer_facts),
            taken=self.stream.taken,
            steps=self.sgd.steps,
            round=self.round,
            round_steps=self.round_steps,
            round_samples=self.round_samples,
            losses=self.sgd.losses,
            spec_hash=self.job.spec_hash,
        )
        # Ordered by round first: a reset point is newer than all steps before it.
        number = self.round * 10**7 + self.round_steps
        checkpoint.save(self.checkpoints, number, tensors, facts)
        self.saves.done(self.sgd.steps)

    # Local training

    def train(
        self, round_: Round, latest: Sequence[ModelFile], source: SoftLabelSource
    ) -> RoundWork:
        """Train a round; see `steps`."""
        steps = self.steps(round_, latest, source)
        while True:
            try:
                self.sgd.step(*next(steps))
            except StopIteration as end:
                work: RoundWork = end.value
                return work

    def steps(
        self, round_: Round, latest: Sequence[ModelFile], source: SoftLabelSource
    ) -> Generator[tuple[Batch, LossOf], None, RoundWork]:
        """Yield the remaining batches of a round with their loss (Eq. 5); publish the model.

        The caller takes the step of each batch, alone or with those of other workers. The mean
        output of `latest`, the compressed models of the round before, is z-bar.

        Raises:
            RunStopped: the user asked for it; the state is saved.
            KdlabError: the loss is not finite.
        """
        if self.round != round_.number:  # it was lost, or this reset point was not saved
            self._set_start_of(round_.number)
            self._load_published(latest)
        sgd = self.sgd
        sgd.odometer.roll_back(sgd.steps)
        begin, sgd.source = sgd.clock(), source
        steps = round_.train_steps - self.round_steps
        mean, relabel_s = None, 0.0
        if not self.job.aggregation.asks_itself:
            latest = [file for file in latest if file.worker != self.job.worker]
        if round_.diversity_weight and latest and steps:
            places = self.stream.ahead(steps)
            with sgd.companions_off_the_clock():
                mean, relabel_s = mean_outputs(sgd, places, self.job.samples, latest)
        busy, before = sgd.cpu(), self.round_steps
        self.model.train()
        for number, batch in enumerate(self.stream.take(source, steps)):
            z = None if mean is None else mean.batch_rows(number, len(batch.ids))
            try:
                yield batch, partial(self._local_loss, z, round_, batch)
            except RunStopped:  # of a worker that shares its steps
                self.stream.taken -= 1
                self._save()
                raise
            self.round_samples += len(batch.ids)
            self.round_steps = before + number + 1
            self._after_step()
        work = RoundWork(
            round=round_.number,
            model=publish(self.model.net, self.job.worker, *self._sent(round_, "local")),
            loss=sgd.mean_loss(),
            steps=self.round_steps,
            samples=self.round_samples,
            wall_s=sgd.clock() - begin,
            train_s=sgd.cpu() - busy,
            relabel_s=relabel_s,
            fetched_bytes=0 if mean is None else others_bytes(self.job, latest),
        )
        if not round_.combines:  # the next round begins here
            self._begin(round_.number + 1, keep=True)
        return work

    def _begin(self, number: int, *, keep: bool) -> None:
        """Begin a round from the current weights, its reset point."""
        self.round, self.round_steps, self.round_samples = number, 0, 0
        if keep:
            self._kept_round = number
            self._save()

    def _set_start_of(self, number: int) -> None:
        """Set the counters to the start of a round, whatever was done of the rounds before.

        So all workers have the same learning rate in a round, and none sees a batch twice.
        """
        self.sgd.steps = sum(self.job.timetable.before(number))
        self.stream.taken = self._taken_before(number)
        self.round, self.round_steps, self.round_samples = number, 0, 0

    def _taken_before(self, number: int) -> int:
        """Count the batches of its stream in all rounds before this one."""
        local, compressing = self.job.timetable.before(number)
        return local + compressing * self.job.aggregation.compresses_in_line

    def _load_published(self, models: Sequence[ModelFile]) -> None:
        """Load its own published model; where weights are averaged, else that of another."""
        mine = [file for file in models if file.worker == self.job.worker]
        for file in mine or models[: int(self.job.aggregation.averages)]:
            self.model.net.load_state_dict(fetch(file))
            memory = fetch(file, MEMORY).items()
            self.memory = {
                k: v for k, v in memory if mine or not k.startswith(OWN)
            } or self.memory
            if mine:
                take_momentum(file, self.sgd.train_step)

    def _local_loss(
        self,
        z: Tensor | None,
        round_: Round,
        batch: Batch,
        scores: Tensor,
        hard: Tensor,
        rows: slice,
    ) -> Tensor:
        """Loss of Eq. 5, plus the soft loss of a teacher where there is one."""
        device, spec = self.sgd.device, self.sgd.control.loss
        mean, alpha = None if z is None else z[rows].to(device), round_.diversity_weight
        loss = self.job.aggregation.local_loss(scores, hard, mean, alpha)
        if spec is None or batch.soft is None:
            return loss
        batch.refuse_nonsense()
        teacher = batch.soft[rows].to(device).float()
        labels = batch.labels[rows].to(device)
        weight = spec.soft_weight_at(self.sgd.epoch)
        return spec.hard_weight * loss + weight * spec.soft(scores, teacher, labels)

    # Aggregation and compression

    def combine(
        self,
        round_: Round,
        models: Sequence[ModelFile],
        keep: bool = True,
        centre: ModelFile | None = None,
    ) -> RoundWork:
        """Make the global model of these, and reset the local model by it.

        With `keep` the reset point is saved; with a communication every few steps not all are.
        The memory is that beside `centre`, if there is one.

        Raises:
            WeightsError: the file of a model has changed.
            KdlabError: the ensemble is worse than its models are on average (Eq. 3).
        """
        self._keeps = keep
        if (self.round, self.round_steps) != (round_.number, round_.train_steps):
            self._catch_up(round_, models)
        self.sgd.odometer.roll_back(self.sgd.steps)
        if isinstance(aggregation := self.job.aggregation, WeightAggregation):
            return self._average(aggregation, round_, models, centre)
        begin = self.sgd.clock()
        parts = compress(self.sgd, self.stream, round_, models)
        return self._reset(round_, begin, parts)

    def _catch_up(self, round_: Round, models: Sequence[ModelFile]) -> None:
        """Restore the published model, after a restart between training and combining."""
        self._load_published(models)
        self._set_start_of(round_.number)
        self.sgd.steps += round_.train_steps
        self.stream.taken += round_.train_steps
        self.round_steps = round_.train_steps

    def _average(
        self,
        aggregation: WeightAggregation,
        round_: Round,
        models: Sequence[ModelFile],
        centre: ModelFile | None,
    ) -> RoundWork:
        """Merge the weights of all by the aggregation."""
        begin, fetched = self.sgd.clock(), round_.exchanged * others_bytes(self.job, models)
        if centre is not None:
            self.memory, fetched = fetch(centre, MEMORY), fetched + centre.bytes
        elif aggregation.encodes:  # a checkpoint may be older than its own code
            for file in (file for file in models if file.worker == self.job.worker):
                self.memory = fetch(file, MEMORY)
        local = {k: v.detach().cpu() for k, v in self.model.net.state_dict().items()}
        merged = aggregation.merge(
            MergeInputs(
                states=[
                    aggregation.decode(fetch(file, SENT), self.memory)
                    if aggregation.encodes
                    else fetch(file)
                    for file in models
                ],
                local=local,
                memory=self.memory,
                parameters=self._trained_names(),
                round=round_.number,
                rounds=len(self.job.timetable.rounds),
                error=self.sgd.error_of,
            )
        )
        self.model.net.load_state_dict(merged.weights)
        self.memory, self.global_weights = merged.memory, merged.global_weights
        if aggregation.optimizer == "reset":
            self.sgd.train_step.forget()
        return self._reset(round_, begin, WorkParts(fetched_bytes=round(fetched)))

    def _sent(
        self, round_: Round, what: str, global_weights: Weights | None = None
    ) -> tuple[Path, dict[str, Tensor], Collection[str]]:
        """Return the path of its model, the tensors beside it, and the names that travel."""
        name = f"worker-{self.job.worker}.{what}.safetensors"
        path = self.job.folder / "rounds" / f"{round_.number:05d}" / name
        state, trained = self.model.net.state_dict(), self._trained_names()
        aggregation, sent = self.job.aggregation, dict[str, Tensor]()
        if isinstance(aggregation, WeightAggregation) and aggregation.encodes:
            if what == "local":
                host = {k: v.detach().cpu() for k, v in state.items()}
                sent, self.memory = aggregation.encode(host, self.memory, trained)
            travelling: Collection[str] = [SENT + k for k in sent]
        else:
            travelling = aggregation.travelling(round_.number, state, trained)
        beside = {MEMORY + k: v for k, v in self.memory.items()}
        beside |= {SENT + k: v for k, v in sent.items()}
        beside |= {WHOLE + k: v for k, v in (global_weights or {}).items()}
        return path, beside, travelling

    def _trained_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.model.net.named_parameters())

    def global_model(self) -> Normalised:
        """Return the global model after a combination; of an ensemble, the local one."""
        if not self.job.aggregation.averages:
            return self.model
        return self.sgd.average_of(self.global_weights or self.model.net.state_dict())

    def _reset(self, round_: Round, begin: float, parts: WorkParts) -> RoundWork:
        """Begin the next round, and publish its starting point for z-bar."""
        loss = self.sgd.mean_loss()
        self._begin(round_.number + 1, keep=self._keeps)
        return RoundWork(
            round=round_.number,
            model=publish(
                self.model.net,
                self.job.worker,
                *self._sent(round_, "reset", self.global_weights),
            ),
            loss=loss,
            steps=round_.compress_steps,
            wall_s=self.sgd.clock() - begin,
            **asdict(parts),
        )

    def _after_step(self) -> None:
        sgd = self.sgd
        # A save in a later round would push out the reset point that a resume needs.
        may_save = self.round == self._kept_round
        sgd.alive(self._save if may_save else None)
        if sgd.logs.due(sgd.steps):
            sgd.log(self.round)
        if not may_save:
            return
        if self.job.changes.take_checkpoint():
            self._save()
            self.job.emit(CheckpointSaved(step=sgd.steps, worker=self.job.worker))
        if self.saves.due(sgd.steps):
            self._save()
