"""Training loop of one student from a SoftLabelSource: Algorithm 2 of EDL-Dist, for one rank.

    1: while not converged do                                  -> epochs
    3:   y, input = get_training_sample()                      -> Batch.labels, .views
    4:   soft_labels = get_soft_labels(input)                  -> Batch.soft
    5:   θ = θ - η ∇ { α φ(y, F(θ, input)) + β ψ(soft_labels, F'(θ, input)) }  -> student_step.py
    7:   θ = Σ θ_j / N                                         -> aggregation/ranks.py

The loop knows neither processes nor teachers. It also trains the teachers themselves (without
soft labels), the N-training and Online baselines, and served students.
"""

import math
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kdlab.changes.request import ChangeRequest
from kdlab.errors import BadInput, ClusterError, Diverged, KdlabError, RunStopped
from kdlab.events.general import Warned
from kdlab.events.training import SettingsChanged
from kdlab.soft_labels.source import Batch, SoftLabelSource, Steerable
from kdlab.train import checkpoint
from kdlab.train.aggregation.ranks import GenerationEnds, StepAgreement
from kdlab.train.alive import alive
from kdlab.train.cadence import Cadence
from kdlab.train.evaluate import Accuracy
from kdlab.train.moving_average import moving_average
from kdlab.train.plan_loop import PlanLoop
from kdlab.train.position import Start
from kdlab.train.result import MemberResult
from kdlab.train.schedules import plateau_drops
from kdlab.train.step import TrainStep, compiled, placed
from kdlab.train.student_job import StudentFacts, StudentJob
from kdlab.train.student_step import BatchStep

if TYPE_CHECKING:  # timm takes seconds
    from timm.utils import ModelEmaV3


class StudentLoop(PlanLoop):
    job: StudentJob

    def __init__(self, job: StudentJob) -> None:
        is_master = job.ranks.rank == 0
        super().__init__(job, job.model, job.model_spec, job.loss, is_master=is_master)
        recipe = job.recipe
        self.device = torch.device(recipe.chosen_device())
        self.model = placed(job.model, recipe, job.emit)
        job.ranks.join_norms(self.model)
        run_model = job.ranks.wrap(compiled(self.model, recipe))
        self.train_step = TrainStep(
            recipe,
            self.model,
            run_model,
            self.device,
            beat=lambda: job.pulse(self.position.step),
        )
        self.step = BatchStep(job, self.train_step)
        self.mean: ModelEmaV3 | None = None  # running mean of the weights, on the master
        if recipe.ema is not None and self.is_master:
            self.mean = moving_average(self.model, recipe.ema)
            self.results.model = self.mean.module
        self.source: SoftLabelSource | None = None  # of its batches
        part = job.samples.part
        self._part = part.shares[part.rank] / sum(part.shares)  # of this rank in a batch
        self._thresholds: dict[str, float] = {}  # last ones sent to its source
        self.saves = Cadence(recipe.checkpoint_every_s, recipe.checkpoint_every_steps)
        self._done_samples = 0  # of this epoch
        self._clock = time.perf_counter()  # start of the current training time
        self._last_loss = float("nan")  # mean at the last read

    # Start and resume

    def resume(self) -> bool:
        """Restore the newest checkpoint, if there is one."""
        folder = self.job.folder / "checkpoints"
        newest = checkpoint.load_newest(folder, self.job.spec_hash, StudentFacts)
        return self.restore(newest)

    def restore(self, newest: checkpoint.LoadedCheckpoint[StudentFacts] | None) -> bool:
        """Restore a loaded checkpoint; return False for None, which is the start."""
        if newest is not None:
            rank = self.job.ranks.rank
            self.train_step.restore(newest.tensors, newest.facts, rank)
            for prefix, module in self._beside().items():
                state = {
                    name.removeprefix(prefix): tensor
                    for name, tensor in newest.tensors.items()
                    if name.startswith(prefix)
                }
                module.load_state_dict(state)
        self._count_from(newest)
        self._count_drops()
        self.saves.done(self.position.step)
        return newest is not None

    def _beside(self) -> dict[str, nn.Module]:
        """Return the modules saved beside the model, by prefix of their tensors' names."""
        modules: dict[str, nn.Module] = {}
        if self.mean is not None:
            modules["ema."] = self.mean.module
        if self.step.features is not None:
            modules["projectors."] = self.step.features.projectors
        return modules

    def start(self) -> Start:
        """Return the start of a source: the epoch and its finished batches."""
        return {"epoch": self.position.epoch, "done": sorted(self.position.done)}

    def measure_rate(self, seconds: float = 0.5) -> float:
        """Measure t_s of EDL-Dist: samples/s without waiting for soft labels (section 3.2).

        Trains a copy on one batch with artificial soft labels; model, optimizer and random
        state do not change.
        """
        return self.step.measured_rate(seconds)

    # Training

    def run(self, source: SoftLabelSource) -> MemberResult:
        """Train to the end; return the result, on the master.

        Raises:
            RunStopped: the user asked for it; the state is saved.
            GenerationEnds: a rank joins or leaves; the state is saved.
            KdlabError: the loss is not finite.
        """
        self.train(source)
        return self.finish()

    def train(self, source: SoftLabelSource) -> None:
        self.source = source
        self.model.train()
        self._apply(self.job.ranks.agree(self.control.wanted_values(now=True)))
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
        except (RunStopped, ClusterError):  # raised here or by a waiting source
            self._stop_clock()
            if ranks.world == 1:  # other ranks would wait for it for ever
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
        """Train on this rank's rows of a batch of `of_rows`: step, count, report and save."""
        position, job = self.position, self.job
        loss = self._step(batch, of_rows)
        position.step += 1
        if self.mean is not None:
            self.mean.update(self.model, step=position.step)
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

    def _request(self) -> ChangeRequest:
        request = self.control.request(save=self.is_master and self.saves.seconds_due())
        self._set_thresholds(self.job.changes.thresholds())
        return request

    def _act(self, agreed: list[StepAgreement]) -> None:
        """Carry out agreements, on all ranks after the same step."""
        wanted = [a.all for a in agreed]
        leave, stop = any(w.leave for w in wanted), any(w.stop for w in wanted)
        due = self.saves.steps_due(self.position.step)
        grouped = self.job.ranks.world > 1
        due = due or any(w.save for w in wanted) or leave or (stop and grouped)
        if due or any(map(self._changes_first, wanted)):
            self._stop_clock()
            self._save()
            self._clock = time.perf_counter()
        if stop:
            raise RunStopped(f"stopped by the user after step {self.position.step}")
        if leave:
            self._stop_clock()
            raise GenerationEnds
        if wanted:
            self._apply(wanted[-1])
        if any(w.pause for w in wanted):
            self._pause()

    def _set_thresholds(self, values: dict[str, float]) -> None:
        """Send thresholds to the source; each rank has its own reader."""
        source: object = self.source
        if values == self._thresholds or not isinstance(source, Steerable):
            return
        self._thresholds = values
        try:
            source.set_thresholds(**values)
        except BadInput as error:  # in megabytes, which only the source can check
            self.job.changes.refuse_thresholds()
            self._thresholds = {}
            self.job.emit(Warned(message=f"The thresholds were not changed. {error}"))
            return
        if self.is_master:
            named = {f"soft_labels.{k}": v for k, v in values.items()}
            self.job.emit(SettingsChanged(step=self.position.step, values=named))

    def _changes_first(self, agreed: ChangeRequest) -> bool:
        """True where values change and the state before that is not saved yet."""
        return bool(self.control.news(agreed)) and self.saves.step < self.position.step

    def _apply(self, agreed: ChangeRequest) -> None:
        if self.control.apply(agreed):
            self.step.loss = self.control.loss

    def _pause(self) -> None:
        """Pause; it does not count as training time."""
        ranks = self.job.ranks

        def act(now: ChangeRequest) -> None:
            if now.save or self._changes_first(now):
                self._save()
            self._apply(now)

        self._stop_clock()
        if any(a.all.save for a in ranks.agreed(last=True)):
            self._save()
        more = self._request  # with this rank's thresholds
        self.control.pause(self.source, agree=lambda r: ranks.agree(r | more()), act=act)
        self._clock = time.perf_counter()
        self.logs.done(self.position.step)

    def _stop_clock(self) -> None:
        self.position.train_seconds += time.perf_counter() - self._clock
        self._clock = time.perf_counter()

    def _step(self, batch: Batch, of_rows: int) -> Tensor:
        epoch = self.position.epoch + self._done_samples / len(self.job.samples.plan.ids)
        factor = self.control.lr_factor
        return self.step(batch, of_rows, epoch=epoch, lr_factor=factor)

    # Reporting and saving

    def _log(self) -> None:
        loss, lr = self._refuse_bad_loss(), self.train_step.lr
        assert self.source is not None
        figures = self.source.figures() if self.is_master else {}
        self._log_step(loss, lr, figures=figures)

    def _refuse_bad_loss(self) -> float:
        """Return the mean loss since the last log line.

        Raises:
            KdlabError: it is not finite.
        """
        since = self.job.ranks.losses()
        if not since:  # a checkpoint has just read it
            return self._last_loss
        loss = self._last_loss = float(torch.stack(since).mean())
        if not math.isfinite(loss):
            lr = self.train_step.lr
            raise Diverged(
                f"The loss is {loss} near step {self.position.step} (epoch "
                f"{self.position.epoch}, lr {lr:g}). Training cannot continue. The usual "
                "causes are a learning rate that is too high, or weights and temperature of "
                "the loss that amplify it. A resumed run keeps its recipe: start a new one "
                "with a lower train.lr, or with train.clip_grad_norm=5. To undo values that "
                "were set during training: kdlab control RUN back"
            )
        return loss

    def _finish_epoch(self) -> None:
        job = self.job
        if self.position.step > self.logs.step:
            self._log()
        counts = job.ranks.sum_counts(torch.from_numpy(self.lineage.counts))
        self.lineage.finish_epoch(counts.numpy(), self.planned_ids())
        seen: Accuracy | None = None
        if self._is_validated():
            job.ranks.average_buffers(self.model, self._part)
            if self.is_master:
                seen = self._validated()
                self.position.looks.append(seen.top1)
                self._count_drops()
        self._next_epoch(seen)

    def _count_drops(self) -> None:
        """Count the drops of the learning rate, with the plateau schedule."""
        if self.job.recipe.schedule == "plateau":
            patience = self.job.recipe.patience
            self.step.drops = plateau_drops(self.position.looks, patience)

    def _save(self) -> None:
        """Save a checkpoint: all ranks take part, and the master writes.

        Heartbeats come only during the write: a rank that waits for another must look as silent
        as that one, or a rank that hangs here would never be detected.
        """
        self._refuse_bad_loss()  # or both checkpoints could be of a ruined model
        job, ranks = self.job, self.job.ranks
        ranks.average_buffers(self.model, self._part)
        counts = ranks.sum_counts(torch.from_numpy(self.lineage.counts))
        random_states = ranks.gather(torch.get_rng_state())
        on_cuda = self.device.type == "cuda"
        cuda = ranks.gather(torch.cuda.get_rng_state()) if on_cuda else []
        self.saves.done(self.position.step)
        if not self.is_master:
            return
        tensors, optimizer_facts = self.train_step.state()
        tensors |= {f"random.rank.{r}": state for r, state in enumerate(random_states)}
        tensors |= {f"random.cuda.{r}": state for r, state in enumerate(cuda)}
        tensors["lineage.counts"] = counts
        for prefix, module in self._beside().items():
            tensors |= {prefix + k: v for k, v in module.state_dict().items()}
        with alive(lambda: job.pulse(self.position.step)):
            self._write_checkpoint(
                StudentFacts,
                tensors,
                **vars(optimizer_facts),
                shares=dict(zip(job.members, job.samples.part.shares, strict=True)),
                fence=job.fence,
            )

    def finish(self) -> MemberResult:
        """Test and export the last and the best weights, on the master."""
        assert self.source is not None
        return self._finished(self.source.figures())
