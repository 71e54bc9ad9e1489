"""One worker of Algorithm 1 of EC-DNN, and of MA-DNN, E-DNN and S-DNN, which are parts of it.

    w <- w - eta grad L(f(w; x), y)  (Eq. 5 with z-bar)      -> train
    w_bar <- {w_1, ..., w_K, 1/K}                            -> combine: compression.py, or `merged`
    w <- Compression(w, w_bar, D)  (Algorithm 2, Eq. 6)      -> combine: compression.py
    reset                                                    -> the checkpoint after it

It knows neither processes nor the other workers, only files of models. Every chance comes
from seed, worker and step, so it does not matter where it runs or whether it came back.
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
from kdlab.methods.ensemble.compression import (
    MeanOutputs,
    compress,
    mean_outputs,
    others_bytes,
)
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
    own_folder,
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
        self.round = 0  # that is to be trained, or has been begun
        self.round_steps = 0  # of its local iterations
        self.round_samples = 0
        self._keeps = True  # the reset point of this round, on disk
        self._kept_round = 0  # whose beginning is kept
        self.saves = Cadence(
            job.recipe.checkpoint_every_s, job.recipe.checkpoint_every_steps
        )
        start = {k: v.detach().cpu() for k, v in self.model.net.state_dict().items()}
        self.memory = job.aggregation.memory(start, self._trained_names())
        self.whole: dict[str, Tensor] | None = None  # global weights, where it has others

    # Start and resume

    @property
    def checkpoints(self) -> Path:
        return own_folder(self.job.folder, self.job.worker) / "checkpoints"

    def go_to(self, number: int, trained: int = 0) -> None:
        """To the newest state it has for this round, or to its newest before.

        Its stream is behind so many `trained` iterations of the round, where a source begins.

        Raises:
            CheckpointError: of another spec.
        """
        self._load_newest(number)
        taken = max(self.stream.taken, self._taken_before(number) + trained)
        self.stream = Stream(self.job.samples, taken)

    def _load_newest(self, number: int) -> None:
        found = checkpoint.load_newest(
            self.checkpoints,
            self.job.spec_hash,
            LocalFacts,
            fits=lambda facts: facts.round <= number,
        )
        if found is None:
            return
        facts, sgd = found.facts, self.sgd
        sgd.train_step.restore(found.tensors, facts, rank=-1)
        remembered = {
            k.removeprefix(MEMORY): v
            for k, v in found.tensors.items()
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
        for note in found.notes:
            self.job.emit(Warned(message=note))
        self.job.emit(WorkerResumed(worker=self.job.worker, step=sgd.steps))

    def _save(self) -> None:
        self.sgd.refuse_bad_loss()
        tensors, own = self.sgd.train_step.state()
        tensors |= {MEMORY + k: v for k, v in self.memory.items()}
        facts = LocalFacts(
            **vars(own),
            taken=self.stream.taken,
            steps=self.sgd.steps,
            round=self.round,
            round_steps=self.round_steps,
            round_samples=self.round_samples,
            losses=self.sgd.losses,
            spec_hash=self.job.spec_hash,
        )
        # Numbered by round first: a reset point is newer than all steps before it.
        number = self.round * 10**7 + self.round_steps
        checkpoint.save(self.checkpoints, number, tensors, facts)
        self.saves.done(self.sgd.steps)

    # Local training

    def train(
        self, round_: Round, latest: Sequence[ModelFile], source: SoftLabelSource
    ) -> RoundWork:
        """All of `steps`, one after the other."""
        steps = self.steps(round_, latest, source)
        while True:
            try:
                self.sgd.one(*next(steps))
            except StopIteration as end:
                done: RoundWork = end.value
                return done

    def steps(
        self, round_: Round, latest: Sequence[ModelFile], source: SoftLabelSource
    ) -> Generator[tuple[Batch, LossOf], None, RoundWork]:
        """The rest of a round's local iterations (Eq. 5); publishes the model.

        Whoever iterates takes the step of each batch, by itself or with those of others.
        The mean of `latest`, the compressed models of the round before, is z-bar.

        Raises:
            RunStopped: the user asked; the state is saved.
            KdlabError: the loss is no number any more.
        """
        if self.round != round_.number:  # it was away, or not all reset points are kept
            self._at_the_start_of(round_.number)
            self._load_own(latest)
        sgd = self.sgd
        sgd.odometer.roll_back(sgd.steps)
        begin, sgd.source = sgd.clock(), source
        steps = round_.train_steps - self.round_steps
        away: MeanOutputs | None = None
        if not self.job.aggregation.asks_itself:
            latest = [file for file in latest if file.worker != self.job.worker]
        if round_.diversity_weight and latest and steps:
            places = self.stream.ahead(steps)
            with sgd.companions_off_the_clock():
                away = mean_outputs(sgd, places, self.job.samples, latest)
        busy, before = sgd.cpu(), self.round_steps
        self.model.train()
        for number, batch in enumerate(self.stream.take(source, steps)):
            z = None if away is None else away.made.of(number, len(batch.ids))
            try:
                yield batch, partial(self._local_loss, z, round_, batch)
            except RunStopped:  # another one was, with which it takes its steps
                self.stream.taken -= 1
                self._save()
                raise
            self.round_samples += len(batch.ids)
            self.round_steps = before + number + 1
            self._between()
        done = RoundWork(
            round=round_.number,
            model=publish(self.model.net, self.job.worker, *self._sent(round_, "local")),
            loss=sgd.mean_loss(),
            steps=self.round_steps,
            samples=self.round_samples,
            wall_s=sgd.clock() - begin,
            train_s=sgd.cpu() - busy,
            relabel_s=0.0 if away is None else away.seconds,
            fetched_bytes=0 if away is None else away.fetched_bytes,
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
        self.sgd.steps = sum(self.job.timetable.before(number))
        self.stream.taken = self._taken_before(number)
        self.round, self.round_steps, self.round_samples = number, 0, 0

    def _taken_before(self, number: int) -> int:
        """Batches of its stream, in all rounds before this one."""
        local, compressing = self.job.timetable.before(number)
        return local + compressing * self.job.aggregation.compresses_in_line

    def _load_own(self, models: Sequence[ModelFile]) -> None:
        """Where it was itself; of weights that all have, else as another one begins."""
        mine = [file for file in models if file.worker == self.job.worker]
        for file in mine or models[: int(self.job.aggregation.averages)]:
            self.model.net.load_state_dict(fetch(file))
            kept = {
                k: v
                for k, v in fetch(file, MEMORY).items()
                if mine or not k.startswith(OWN)
            }
            self.memory = kept or self.memory
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
        """Eq. 5, and the soft loss of a teacher where there is one."""
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
        """Make the global model of these, and reset the local one by it.

        With `keep` the reset point is kept on disk: with a communication every few steps
        not all are. What is remembered is taken from beside `centre`, if there is one.

        Raises:
            WeightsError: a model changed on the way.
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
        """After a restart in between: the local training is done, and was published."""
        self._load_own(models)
        self._at_the_start_of(round_.number)
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
        """The weights of all, made one as the aggregation does it."""
        begin, fetched = self.sgd.clock(), round_.exchanged * others_bytes(self.job, models)
        if centre is not None:
            self.memory, fetched = fetch(centre, MEMORY), fetched + centre.bytes
        elif (
            aggregation.encodes
        ):  # as it was behind its code: a checkpoint may be of before
            mine = [file for file in models if file.worker == self.job.worker]
            for file in mine:
                self.memory = fetch(file, MEMORY)
        own = {k: v.detach().cpu() for k, v in self.model.net.state_dict().items()}
        merged = aggregation.merge(
            MergeInputs(
                states=[
                    aggregation.decode(fetch(file, SENT), self.memory)
                    if aggregation.encodes
                    else fetch(file)
                    for file in models
                ],
                own=own,
                memory=self.memory,
                parameters=self._trained_names(),
                round=round_.number,
                rounds=len(self.job.timetable.rounds),
                error=self.sgd.error_of,
            )
        )
        self.model.net.load_state_dict(merged.weights)
        self.memory, self.whole = merged.memory, merged.whole
        if aggregation.optimizer == "reset":
            self.sgd.train_step.forget()
        return self._reset(round_, begin, WorkParts(fetched_bytes=round(fetched)))

    def _sent(
        self, round_: Round, what: str, whole: Weights | None = None
    ) -> tuple[Path, dict[str, Tensor], Collection[str]]:
        """Where its model goes, what is beside it for whoever comes back, and what travels."""
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
        beside |= {WHOLE + k: v for k, v in (whole or {}).items()}
        return path, beside, travelling

    def _trained_names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.model.net.named_parameters())

    def global_model(self) -> Normalised:
        """What it has of the global model after a combination."""
        if not self.job.aggregation.averages:
            return self.model
        return self.sgd.average_of(self.whole or self.model.net.state_dict())

    def _reset(self, round_: Round, begin: float, parts: WorkParts) -> RoundWork:
        """The new starting point: kept, and published for z-bar."""
        loss = self.sgd.mean_loss()
        self._begins(round_.number + 1, keep=self._keeps)
        return RoundWork(
            round=round_.number,
            model=publish(
                self.model.net, self.job.worker, *self._sent(round_, "reset", self.whole)
            ),
            loss=loss,
            steps=round_.compress_steps,
            wall_s=self.sgd.clock() - begin,
            **asdict(parts),
        )

    def _between(self) -> None:
        sgd = self.sgd
        # Of another round it would push out the reset point that a resume goes back to.
        may = self.round == self._kept_round
        sgd.alive(self._save if may else None)
        if sgd.logs.due(sgd.steps):
            sgd.log(self.round)
        if not may:
            return
        if self.job.changes.take_checkpoint():
            self._save()
            self.job.emit(CheckpointSaved(step=sgd.steps, worker=self.job.worker))
        if self.saves.due(sgd.steps):
            self._save()
