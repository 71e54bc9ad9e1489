"""One student learns from a SoftLabelSource: Algorithm 2 of EDL-Dist, for one resource.

    1: while not converged do                                  -> epochs
    3:   y, input = get_training_sample()                      -> Batch.labels, .views
    4:   soft_labels = get_soft_labels(input)                  -> Batch.soft
    5:   θ = θ - η ∇ { α φ(y, F(θ, input)) + β ψ(soft_labels, F'(θ, input)) }  -> _step
    7:   θ = Σ θ_j / N                                         -> aggregation/ranks.py

The loop knows no process and no teacher. The same loop trains the teachers themselves
(without soft labels), the N-training and Online baselines, and served students.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.control.cadence import Cadence, logging
from kdlab.control.loop_control import LoopControl
from kdlab.control.request import ControlRequest
from kdlab.control.steering import Steering, settings_of, with_settings
from kdlab.data.samples import PlannedSamples
from kdlab.errors import BadInput, ClusterError, KdlabError, RunStopped
from kdlab.events.event import Emit
from kdlab.events.general import Note, Warned
from kdlab.events.training import (
    CheckpointSaved,
    EpochDone,
    Resumed,
    Steered,
    StepLogged,
)
from kdlab.losses.soft_loss import LossSpec
from kdlab.models.memory import keep_freed_memory
from kdlab.models.model import ModelSpec, Normalised
from kdlab.soft_labels.source import Batch, SoftLabelSource, Steerable
from kdlab.train import checkpoint
from kdlab.train.aggregation.ranks import Agreed, GenerationEnds, Ranks, Solo
from kdlab.train.alive import alive
from kdlab.train.lineage import Lineage, Odometer
from kdlab.train.position import Position
from kdlab.train.recipe import Recipe, lr_at
from kdlab.train.result import StudentResult
from kdlab.train.results import Results
from kdlab.train.step import Descent
from kdlab.train.sync_norm import leave_alone

_LOG_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentJob:
    """What to train, on what, and where to write."""

    recipe: Recipe
    model_spec: ModelSpec
    model: Normalised
    samples: PlannedSamples
    loss: LossSpec | None  # None: true labels only, whatever the source says
    seed: int
    folder: Path
    spec_hash: str
    emit: Emit
    stop: Callable[[], bool] = lambda: False
    ranks: Ranks = field(default_factory=Solo)
    members: tuple[str, ...] = ("alone",)  # names of the ranks, in their order
    fence: int = 0  # of this generation of ranks: what an earlier one saves is refused
    leave: Callable[[], bool] = lambda: False  # save and end this generation
    pulse: Callable[[int], None] = lambda step: None  # a sign of life
    steering: Steering = field(default_factory=lambda: Steering(None, ""))


class StudentLoop:
    def __init__(self, job: StudentJob) -> None:
        keep_freed_memory()
        self.job, recipe = job, job.recipe
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        self.device = torch.device(recipe.chosen_device())
        # Not on the CPU: oneDNN brings what it wants into its own order, and that of torch
        # 2.15 overwrites memory for 1x1 convolutions with stride in this one (AVX2, 4 channels).
        last = recipe.channels_last and self.device.type == "cuda"
        if recipe.channels_last and not last:
            job.emit(Note(message="channels_last is for GPUs; the CPU does without it"))
        layout = torch.channels_last if last else torch.contiguous_format
        self.model = job.model.to(self.device, memory_format=layout)  # type: ignore[call-overload]  # stubs miss memory_format
        job.ranks.join_norms(self.model)
        run_model = job.ranks.wrap(
            torch.compile(self.model) if recipe.compile else self.model  # type: ignore[arg-type]
        )
        self.descent = Descent(recipe, self.model, run_model, self.device)
        self.batches = job.samples.plan.batches
        data = job.samples.data
        self.position = Position()
        self.lineage = Lineage.start(len(data.labels), data.train)
        self.odometer = Odometer(job.folder / "odometer")
        self.source: SoftLabelSource | None = None
        self._part = job.samples.part.shares[job.samples.part.rank] / sum(
            job.samples.part.shares
        )
        self.loss = job.loss
        self.control = LoopControl(
            job.steering,
            settings_of(job.loss),
            step=lambda: self.position.step,
            emit=job.emit,
            stop=job.stop,
            leave=job.leave,
            pulse=job.pulse,
            is_first=self.is_master,
        )
        self._thresholds: dict[str, float] = {}
        self._compiles = True  # the first step
        self.logs = logging(_LOG_EVERY_S, recipe.log_every_steps)
        self.saves = Cadence(recipe.checkpoint_every_s, recipe.checkpoint_every_steps)
        self._done_samples = 0  # of this epoch
        self._clock = time.perf_counter()
        self._last_loss = float("nan")
        self.results = Results(
            self.model,
            job.model_spec,
            data,
            job.folder,
            recipe.evaluate_batch,
            alive=lambda: job.pulse(self.position.step),
        )

    # Start and resume

    def resume(self) -> bool:
        """Go to the newest checkpoint, if there is one."""
        folder = self.job.folder / "checkpoints"
        return self.go_to(checkpoint.load_newest(folder, self.job.spec_hash))

    def go_to(self, found: checkpoint.Found | None) -> bool:
        """Go to a checkpoint that was loaded; False for None, which is the start."""
        job, master = self.job, self.job.ranks.rank == 0
        if found is None:
            if master:
                self.lineage.rolled_back = self.odometer.roll_back(0)
            return False
        tensors, facts, notes = found
        descent = self.descent
        checkpoint.unpack(tensors, facts, self.model, descent.optimizer, job.ranks.rank)
        descent.scaler.load_state_dict(facts["scaler"])
        self.position = Position.from_checkpoint(facts, job.samples.plan.batch)
        self.saves.done(self.position.step)
        self.lineage.restore(tensors["lineage.counts"].numpy(), facts["lineage"])
        if not master:  # the counts of all ranks go on in the master's
            self.lineage.counts[:] = 0
            return True
        undone = max(0, self.odometer.value - self.lineage.seen)
        self.lineage.rolled_back = self.odometer.roll_back(self.lineage.seen)
        for note in notes:
            job.emit(Warned(message=note))
        job.emit(
            Resumed(
                epoch=self.position.epoch,
                step=self.position.step,
                rolled_back=undone,
            )
        )
        return True

    def start(self) -> dict[str, Any]:
        """What a source must know to begin: the epoch and its finished batches."""
        return {"epoch": self.position.epoch, "done": sorted(self.position.done)}

    @property
    def is_master(self) -> bool:
        """Rank 0 evaluates, saves and reports (EDL-Dist 3.4: chosen before training)."""
        return self.job.ranks.rank == 0

    def measure_rate(self, seconds: float = 0.5) -> float:
        """t_s of EDL-Dist: samples/s when soft labels are free (section 3.2).

        Trains a copy on one batch with made-up soft labels; leaves no trace in the model,
        the optimiser or the random state.
        """
        samples = self.job.samples
        ids = samples.batches(0)[0]
        views = torch.from_numpy(samples.views(ids, 0))
        labels = torch.from_numpy(samples.labels(ids))
        soft = torch.zeros((len(ids), samples.classes))
        batch = Batch(0, ids, views, labels, soft)
        kept = self.descent
        with torch.random.fork_rng():
            model = leave_alone(copy.deepcopy(self.model))
            self.descent = Descent(self.job.recipe, model, model, self.device)
            try:
                model.train()
                for _ in range(3):
                    self._step(batch, len(ids))
                steps, begin = 0, time.perf_counter()
                while steps < 5 or time.perf_counter() - begin < seconds:
                    samples.views(ids, 0)  # preparing views is part of the student's work
                    float(self._step(batch, len(ids)))
                    steps += 1
                return steps * len(ids) / (time.perf_counter() - begin)
            finally:
                self.descent = kept

    # Training

    def run(self, source: SoftLabelSource) -> StudentResult:
        """Train to the end; what the master reports.

        Raises:
            RunStopped: the user asked; the state is saved.
            GenerationEnds: a rank comes or goes; the state is saved.
            KdlabError: the loss is no longer a number.
        """
        self.train(source)
        return self.finish()

    def train(self, source: SoftLabelSource) -> None:
        self.source = source
        self.model.train()
        self._apply(self.job.ranks.agree(self.control.first_settings()))
        while self.position.epoch < self.job.recipe.epochs:
            self._train_epoch(source)
            self._finish_epoch()

    def _train_epoch(self, source: SoftLabelSource) -> None:
        position, ranks = self.position, self.job.ranks
        sizes = self.job.samples.plan.sizes(position.epoch)
        self.begin_epoch()
        try:
            for batch in source.epoch(position.epoch, frozenset(position.done)):
                self.one_batch(batch, sizes[batch.index])
            self._act(ranks.agreed(last=True))
        except (RunStopped, ClusterError):  # here, or in the source while it waited
            self._stop_clock()
            if ranks.world == 1:  # the others cannot know of it: they would wait for ever
                self._save()
            raise
        self._stop_clock()
        if len(position.done) != len(sizes):
            raise KdlabError(
                f"Epoch {position.epoch} got {len(position.done)} of {len(sizes)} batches "
                f"from {type(source).__name__}. No batch may be lost; this is a defect of "
                "the source."
            )

    def begin_epoch(self) -> None:
        position = self.position
        sizes = self.job.samples.plan.sizes(position.epoch)
        self._done_samples = position.first_sample + sum(sizes[i] for i in position.done)
        self._clock = time.perf_counter()
        self.logs.done(position.step)

    def one_batch(self, batch: Batch, of_rows: int) -> None:
        """One step on this rank's rows of a batch of `of_rows`, and all that goes with it."""
        position, job = self.position, self.job
        if self._compiles:  # it may, and takes minutes then
            self._compiles = False
            with alive(lambda: job.pulse(position.step)):
                loss = self._step(batch, of_rows)
        else:
            loss = self._step(batch, of_rows)
        position.step += 1
        position.done.add(batch.index)
        self._done_samples += of_rows
        self.lineage.trained(batch.ids, of_rows)
        if self.is_master:
            self.odometer.value = self.lineage.seen
        job.pulse(position.step)
        job.ranks.after_step(loss, len(batch.ids) / of_rows, self._request())
        if self.logs.due(position.step):
            self._log()
        self._act(job.ranks.agreed())

    def _request(self) -> ControlRequest:
        request = self.control.request(save=self.is_master and self.saves.seconds_due())
        self._set_thresholds(self.job.steering.thresholds())
        return request

    def _act(self, agreed: list[Agreed]) -> None:
        """What all ranks do after the same step."""
        wanted = [a.all for a in agreed]
        if wanted:
            self._apply(wanted[-1])
        leave, stop = any(w.leave for w in wanted), any(w.stop for w in wanted)
        due = self.saves.steps_due(self.position.step)
        grouped = self.job.ranks.world > 1
        if any(w.save for w in wanted) or due or leave or (stop and grouped):
            self._stop_clock()
            self._save()
            self._clock = time.perf_counter()
        if stop:
            raise RunStopped(f"stopped by the user after step {self.position.step}")
        if leave:
            self._stop_clock()
            raise GenerationEnds
        if any(w.pause for w in wanted):
            self._pause()

    def _set_thresholds(self, values: dict[str, float]) -> None:
        """Each rank has a reader of its own."""
        source: object = self.source
        if values == self._thresholds or not isinstance(source, Steerable):
            return
        self._thresholds = values
        try:
            source.set_thresholds(**values)
        except BadInput as error:  # in megabytes: known here only
            self.job.steering.refuse(values)
            self._thresholds = self.job.steering.thresholds()
            self.job.emit(Warned(message=f"The thresholds stay as they are. {error}"))
            return
        if self.is_master:
            named = {f"soft_labels.{k}": v for k, v in values.items()}
            self.job.emit(Steered(step=self.position.step, values=named))

    def _apply(self, agreed: ControlRequest) -> None:
        if self.control.apply(agreed):
            self.loss = with_settings(self.job.loss, self.control.settings)

    def _pause(self) -> None:
        """It is no training time."""
        ranks = self.job.ranks

        def act(now: ControlRequest) -> None:
            self._apply(now)
            if now.save:
                self._save()

        self._stop_clock()
        if any(a.all.save for a in ranks.agreed(last=True)):
            self._save()
        request = self._request  # with this rank's thresholds
        self.control.pause(self.source, agree=lambda _: ranks.agree(request()), act=act)
        self._clock = time.perf_counter()
        self.logs.done(self.position.step)

    def _stop_clock(self) -> None:
        self.position.train_seconds += time.perf_counter() - self._clock
        self._clock = time.perf_counter()

    def _step(self, batch: Batch, of_rows: int) -> Tensor:
        """Line 5. Returns this rank's mean loss, still on the device."""
        recipe, ranks = self.job.recipe, self.job.ranks
        epoch = self.position.epoch + self._done_samples / len(self.job.samples.plan.ids)
        views = batch.views.to(self.device, non_blocking=True)
        labels = batch.labels.to(self.device, non_blocking=True)
        loss = self._loss(self.descent.scores(views), labels, batch.soft)
        lr = self.control.lr_factor * ranks.lr_scale * lr_at(recipe, epoch, self.batches)
        self.descent(ranks.weigh(loss, len(labels), of_rows), lr)
        return loss.detach()

    def _loss(self, scores: Tensor, labels: Tensor, soft: Tensor | None) -> Tensor:
        """α φ + β ψ; plain φ without a teacher. In float32 whatever the precision."""
        hard = cross_entropy(
            scores, labels, label_smoothing=self.job.recipe.label_smoothing
        )
        spec = self.loss
        if spec is None or soft is None:
            return hard
        teacher = soft.to(self.device, torch.float32, non_blocking=True)
        soft = spec.soft(scores, teacher, labels)
        return torch.add(spec.hard_weight * hard, soft, alpha=spec.soft_weight)

    # Reporting and saving

    def _log(self) -> None:
        loss = self._refuse_bad_loss()
        rate = self.logs.rate(self.position.step) * self.job.samples.plan.batch
        assert self.source is not None
        if self.is_master:
            self.job.emit(
                StepLogged(
                    epoch=self.position.epoch,
                    step=self.position.step,
                    of_steps=self.job.recipe.epochs * self.batches,
                    loss=loss,
                    lr=self.descent.optimizer.param_groups[0]["lr"],
                    samples_per_second=rate,
                    samples_seen=self.lineage.seen,
                    figures=self.source.figures(),
                )
            )
        self.logs.done(self.position.step)

    def _refuse_bad_loss(self) -> float:
        """The mean loss since the last log line.

        Raises:
            KdlabError: it is no number any more.
        """
        since = self.job.ranks.losses()
        if not since:  # looked at by a checkpoint a moment ago
            return self._last_loss
        loss = self._last_loss = float(torch.stack(since).mean())
        if not math.isfinite(loss):
            lr = self.descent.optimizer.param_groups[0]["lr"]
            raise KdlabError(
                f"The loss is {loss} near step {self.position.step} (epoch "
                f"{self.position.epoch}, lr {lr:g}). Training cannot go on from here. The "
                "usual causes are a learning rate that is too high, or weights and "
                "temperature of the loss that blow it up. A resumed run keeps its recipe: "
                "start it anew with a lower train.lr, or with train.clip_grad_norm=5."
            )
        return loss

    def _finish_epoch(self) -> None:
        job, position = self.job, self.position
        if self.position.step > self.logs.step:
            self._log()
        counts = job.ranks.sum_counts(torch.from_numpy(self.lineage.counts))
        self.lineage.finish_epoch(counts.numpy())
        facts: dict[str, Any] = {}
        if (position.epoch + 1) % job.recipe.evaluate_every == 0 or self._is_last():
            job.ranks.average_buffers(self.model, self._part)
            if self.is_master:
                facts = self.results.validate(position, is_last=self._is_last())
        position.epoch += 1
        position.first_sample = 0
        position.done.clear()
        if not self.is_master:
            return
        job.emit(
            EpochDone(
                epoch=position.epoch,
                of_epochs=job.recipe.epochs,
                step=position.step,
                samples_per_second=self.lineage.seen / max(1e-9, position.train_seconds),
                samples_lost=self.lineage.lost,
                samples_repeated=self.lineage.repeated,
                **facts,
            )
        )

    def _is_last(self) -> bool:
        return self.position.epoch + 1 == self.job.recipe.epochs

    def _save(self) -> None:
        """All ranks take part; the master writes."""
        with alive(lambda: self.job.pulse(self.position.step)):
            self._save_now()

    def _save_now(self) -> None:
        self._refuse_bad_loss()  # or both kept checkpoints could be of a ruined model
        job, ranks, plan = self.job, self.job.ranks, self.job.samples.plan
        ranks.average_buffers(self.model, self._part)
        counts = ranks.sum_counts(torch.from_numpy(self.lineage.counts))
        random_states = ranks.gather(torch.get_rng_state())
        on_cuda = self.device.type == "cuda"
        cuda = ranks.gather(torch.cuda.get_rng_state()) if on_cuda else []
        self.saves.done(self.position.step)
        if not self.is_master:
            return
        tensors, facts = checkpoint.pack(self.model, self.descent.optimizer)
        tensors |= {f"random.rank.{r}": state for r, state in enumerate(random_states)}
        tensors |= {f"random.cuda.{r}": state for r, state in enumerate(cuda)}
        tensors["lineage.counts"] = counts
        facts |= {
            "position": self.position.to_json(),
            "plan": job.samples.plan.facts(),
            "samples": len(plan.ids),
            "shares": dict(zip(job.members, job.samples.part.shares, strict=True)),
            "fence": job.fence,
            "lineage": self.lineage.facts(),
            "scaler": self.descent.scaler.state_dict(),
            "seed": job.seed,
            "spec_hash": job.spec_hash,
        }
        folder = job.folder / "checkpoints"
        path = checkpoint.save(folder, self.position.step, tensors, facts, fence=job.fence)
        job.emit(CheckpointSaved(step=self.position.step, path=str(path)))

    def finish(self) -> StudentResult:
        """Test the last and the best weights and export them; the master's work."""
        assert self.source is not None
        result = self.results.finish(self.position, self.lineage, self.source.figures())
        self.odometer.close()
        return result
