"""SGD steps of one local model, and the work between them."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.changes.request import ChangeRequest
from kdlab.data.splits import by_class
from kdlab.errors import Diverged, RunStopped
from kdlab.events.ensemble import LocalStep
from kdlab.events.training import CheckpointSaved
from kdlab.losses.local import log_loss
from kdlab.methods.ensemble.local_job import LocalJob, worker_folder
from kdlab.methods.ensemble.relabel import probabilities
from kdlab.models.model import Normalised
from kdlab.soft_labels.source import Batch
from kdlab.train.aggregation.kind import Weights
from kdlab.train.cadence import logging
from kdlab.train.hard_loss import hard_loss
from kdlab.train.job import begin_process
from kdlab.train.lineage import Odometer
from kdlab.train.loop_control import LoopControl, agree_with_nobody
from kdlab.train.recalibration import recalibrate
from kdlab.train.step import TrainStep, compiled, placed, seed_by, steps_per_second

_LOG_EVERY_S = 0.5

Save = Callable[[], None]
LossOf = Callable[[Tensor, Tensor, slice], Tensor]
"""Loss of some rows of a batch, from their scores and their loss on the true labels."""


def _processor_s() -> float:
    return max(time.process_time() / torch.get_num_threads(), time.thread_time())


class LocalSgd:
    """Training state of one local model. Steps count over all rounds."""

    def __init__(self, job: LocalJob) -> None:
        begin_process(job.recipe)
        self.job = job
        self.device = torch.device(job.recipe.chosen_device())
        self.model = placed(job.model, job.recipe, job.emit)
        run_model = compiled(self.model, job.recipe)
        self.train_step = TrainStep(
            job.recipe,
            self.model,
            run_model,
            self.device,
            beat=lambda: job.pulse(self.steps),
        )
        self.steps = 0  # compressing ones included
        self.odometer = Odometer(
            worker_folder(job.folder, job.worker) / "odometer"
        )  # of steps
        self._losses: list[Tensor] = []  # of steps since the last `mean_loss`
        self._paused_s = self._paused_cpu_s = 0.0  # off the clock
        self._is_off_the_clock = False
        self.companions: Sequence[LocalSgd] = ()  # local models that share its steps
        self._priced_s = 0.0  # cost of all work so far, where it has prices
        self.source: object = None  # of its batches; it rests in pauses
        self.control = LoopControl(job, job.loss, lambda: self.steps, worker=job.worker)
        self.logs = logging(_LOG_EVERY_S, job.recipe.log_every_steps, self.clock)

    def step(self, batch: Batch, loss_of: LossOf = lambda scores, hard, rows: hard) -> None:
        """Take a step on a batch; the default loss is that on the true labels."""
        train_step, rows = self.train_step, len(batch.ids)
        # Dropout depends only on these.
        seed_by(self.job.seed, self.job.worker, self.steps)
        views, labels = batch.views.to(self.device), batch.labels.to(self.device)
        self.schedule()
        seen = list[Tensor]()

        def loss(part: slice) -> Tensor:
            scores = train_step.scores(views[part])
            seen.append(scores.detach())
            return loss_of(scores, self.hard_loss(scores, labels[part]), part)

        train_step.gradients(rows, train_step.parts(rows), loss)
        self.update(torch.cat(seen), labels)

    def schedule(self) -> None:
        """Set the learning rate of the next step."""
        batches, factor = self.job.samples.plan.batches, self.control.lr_factor
        self.train_step.at(self.epoch, batches, factor)

    def hard_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return hard_loss(self.job.recipe, scores, labels)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Update the weights by the current gradients, of a batch that had these scores."""
        self.train_step.update()
        self.steps += 1
        self.odometer.value = self.steps
        if self.job.prices is not None:
            self._priced_s += self.job.prices.step_s
        # Not the objective: that of Eq. 5 is smallest for the model that differs most.
        self._losses.append(cross_entropy(scores, labels))

    @property
    def epoch(self) -> float:
        """Epochs so far, from all steps, those of compressions included."""
        return self.steps / max(1, self.job.timetable.steps) * self.job.recipe.epochs

    def alive(self, save: Save | None = None) -> None:
        """Report life, apply changes, pause or stop, between batches; `save` keeps the state.

        Raises:
            RunStopped: the user asked for it; the newest state is kept.
        """
        self.job.pulse(self.steps)
        # From the next step on, wherever the other local models are.
        self.control.apply(self.control.wanted_values())
        if self.job.changes.paused and not self.job.stop():
            self._pause(save)
        if self.job.stop():
            if save is not None:
                save()
            raise RunStopped(f"stopped by the user after step {self.steps}")

    def clock(self) -> float:
        """Seconds without pauses."""
        return time.perf_counter() - self._paused_s

    def cpu(self) -> float:
        """Seconds that its device has computed, without pauses.

        On a GPU: wall time until all its work is done, that of other workers included. On a CPU:
        processor time over the number of threads, and at least that of this thread. Where work
        has prices: their sum.
        """
        if self.job.prices is not None:
            return self._priced_s
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return self.clock()
        return _processor_s() - self._paused_cpu_s

    def charge_forward(self, rows: int) -> None:
        """Charge forward passes of `rows` images, where work has prices."""
        if self.job.prices is not None:
            self._priced_s += rows * self.job.prices.row_s

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Exclude what is done inside, such as a pause, from this worker's seconds."""
        if self._is_off_the_clock:
            yield
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # earlier work counts
        begin, busy = time.perf_counter(), _processor_s()
        self._is_off_the_clock = True
        yield
        self._is_off_the_clock = False
        self._paused_s += time.perf_counter() - begin
        self._paused_cpu_s += _processor_s() - busy

    @contextmanager
    def companions_off_the_clock(self) -> Iterator[None]:
        """Charge what is done inside to this worker, not to those that share its steps."""
        with ExitStack() as stack:
            for sgd in self.companions:
                stack.enter_context(sgd.off_the_clock())
            yield

    def _pause(self, save: Save | None) -> None:
        """Pause, off the clock."""

        def act(now: ChangeRequest) -> None:
            self.control.apply(now)
            if now.save and save is not None:
                save()
                self.job.emit(CheckpointSaved(step=self.steps, worker=self.job.worker))
            elif now.save:  # as soon as the state may be kept
                self.job.changes.wants_checkpoint = True

        with self.off_the_clock(), self.companions_off_the_clock():
            self.control.pause(self.source, agree=agree_with_nobody, act=act)

    def log(self, round_: int) -> None:
        self.refuse_bad_loss()
        self.job.emit(
            LocalStep(
                worker=self.job.worker,
                round=round_,
                step=self.steps,
                of_steps=self.job.timetable.steps,
                loss=float(self._losses[-1]) if self._losses else None,
                samples_per_second=self.logs.rate(self.steps) * self.job.samples.plan.batch,
            )
        )
        self.logs.done(self.steps)

    def refuse_bad_loss(self) -> None:
        if self._losses and not math.isfinite(float(self._losses[-1])):
            loss = float(self._losses[-1])
            raise self.diverged(f"The loss of worker {self.job.worker} is {loss}")

    def diverged(self, fault: str) -> Diverged:
        """Make the error of a loss that is not finite; it names the settings to lower."""
        rate, *others = self.job.aggregation.diverges_by
        settings = " or ".join([f"{rate} ({self.job.recipe.lr:g})", *others])
        return Diverged(
            f"{fault} near step {self.steps}. Training cannot continue. Lower {settings}."
        )

    @property
    def losses(self) -> tuple[float, ...]:
        """Losses of the steps since the last `mean_loss`, for a checkpoint."""
        return tuple(torch.stack(self._losses).tolist()) if self._losses else ()

    @losses.setter
    def losses(self, values: tuple[float, ...]) -> None:
        self._losses = list(torch.tensor(values, device=self.device))

    def mean_loss(self) -> float:
        """Average the losses of the steps since the last call; nan if there are none.

        Raises:
            Diverged: the loss of the last step is not finite.
        """
        self.refuse_bad_loss()
        losses, self._losses = self._losses, []
        return float(torch.stack(losses).mean()) if losses else float("nan")

    def measure_rate(self, seconds: float = 0.3) -> float:
        """Measure samples/s of local steps without waiting for labels; nothing is changed."""
        ids = self.job.samples.batches(0)[0]
        device = self.device
        views = torch.from_numpy(self.job.samples.views(ids, 0)).to(device)
        labels = torch.from_numpy(self.job.samples.labels(ids)).to(device)
        with torch.random.fork_rng():
            model = copy.deepcopy(self.model).train()
            train_step = TrainStep(self.job.recipe, model, model, device)

            def step() -> None:
                loss = hard_loss(self.job.recipe, train_step.scores(views), labels)
                train_step(loss, 1e-3)

            return len(ids) * steps_per_second(step, least=3, seconds=seconds)

    # Evaluation

    @torch.inference_mode()
    def probabilities(
        self, inputs: NDArray[np.uint8], model: Normalised | None = None
    ) -> Tensor:
        """Return (n, C) probabilities of unaugmented images, by `model` or the local model."""
        model = self.model if model is None else model
        model.eval()
        rows = self.job.recipe.evaluate_batch
        pieces = (inputs[at : at + rows] for at in range(0, len(inputs), rows))
        return probabilities(model, pieces, lambda: self.job.pulse(self.steps))

    def train_loss(self, most: int = 5000) -> float:
        """Average the cross entropy on the unaugmented local data, of at most `most` images.

        A larger set is sampled by class, since local data may be sorted by class.
        """
        data, ids = self.job.samples.data, self.job.samples.plan.ids
        if len(ids) > most:
            ids = by_class(ids, data.labels, most, 0)[0]
        return log_loss(
            self.probabilities(data.inputs[ids]), torch.from_numpy(data.labels[ids])
        )

    def average_of(self, weights: Weights) -> Normalised:
        """Build a network with averaged weights, with its batch norms recalibrated."""
        job, scratch = self.job, self.job.scratch(self.job.worker)
        scratch.net.load_state_dict(dict(weights))
        alive, batch = partial(job.pulse, self.steps), job.recipe.evaluate_batch
        recalibrate(scratch, job.samples, job.recalibrate, batch, alive)
        return scratch

    def error_of(self, weights: Weights) -> float:
        """Return the error on validation images of a network with these weights, in percent."""
        data = self.job.samples.data
        outputs = self.probabilities(data.inputs[data.validation], self.average_of(weights))
        wrong = outputs.argmax(1).numpy() != data.labels[data.validation]
        return 100 * float(wrong.mean())
