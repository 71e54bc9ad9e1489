"""SGD of one local model: its steps, and what happens between them."""

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
from kdlab.methods.ensemble.local_job import LocalJob, own_folder
from kdlab.methods.ensemble.relabel import probabilities
from kdlab.models.model import Normalised
from kdlab.soft_labels.source import Batch
from kdlab.train.aggregation.kind import Weights
from kdlab.train.cadence import logging
from kdlab.train.hard_loss import hard_loss
from kdlab.train.job import begin_process
from kdlab.train.lineage import Odometer
from kdlab.train.loop_control import LoopControl, alone
from kdlab.train.recalibration import take_statistics_again
from kdlab.train.step import TrainStep, compiled, placed, seed_by, steps_per_second

_LOG_EVERY_S = 0.5

Save = Callable[[], None]
LossOf = Callable[[Tensor, Tensor, slice], Tensor]
"""Of the scores of these rows of a batch, and the loss of their true labels."""


def _of_processor() -> float:
    return max(time.process_time() / torch.get_num_threads(), time.thread_time())


class LocalSgd:
    """Steps count in all rounds; their losses are those since the last word."""

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
        own = own_folder(job.folder, job.worker)
        self.odometer = Odometer(own / "odometer")  # of steps
        self._losses: list[Tensor] = []
        self._stood_s = self._stood_cpu_s = 0.0  # in pauses
        self._is_off_the_clock = False
        self.companions: Sequence[LocalSgd] = ()  # local models that share its steps
        self._priced_s = 0.0  # of all work so far, where it has prices
        self.source: object = None  # of its batches, which rests in pauses
        self.control = LoopControl(job, job.loss, lambda: self.steps, worker=job.worker)
        self.logs = logging(_LOG_EVERY_S, job.recipe.log_every_steps, self.clock)

    def one(self, batch: Batch, loss_of: LossOf = lambda scores, hard, rows: hard) -> None:
        """A step; without a loss of its own one of plain local training."""
        train_step, rows = self.train_step, len(batch.ids)
        # Dropout depends on these alone.
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
        """The rate of the next step."""
        batches, factor = self.job.samples.plan.batches, self.control.lr_factor
        self.train_step.at(self.epoch, batches, factor)

    def hard_loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        return hard_loss(self.job.recipe, scores, labels)

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Down the gradients that are there, of a batch that had these scores."""
        self.train_step.update()
        self.steps += 1
        self.odometer.value = self.steps
        if self.job.prices is not None:
            self._priced_s += self.job.prices.step_s
        # Not the objective: that of Eq. 5 is smallest for the model that differs most.
        self._losses.append(cross_entropy(scores, labels))

    @property
    def epoch(self) -> float:
        """So many are over, by all steps, those of compressions included."""
        return self.steps / max(1, self.job.timetable.steps) * self.job.recipe.epochs

    def alive(self, save: Save | None = None) -> None:
        """Between batches; with `save` the state may be kept now.

        Raises:
            RunStopped: the user asked; the newest state is kept.
        """
        self.job.pulse(self.steps)
        # For the next step on, whatever the other local models have come to.
        self.control.apply(self.control.wanted_values())
        if self.job.changes.paused and not self.job.stop():
            self._pause(save)
        if self.job.stop():
            if save is not None:
                save()
            raise RunStopped(f"stopped by the user after step {self.steps}")

    def clock(self) -> float:
        """Seconds, those in pauses left out."""
        return time.perf_counter() - self._stood_s

    def cpu(self) -> float:
        """Seconds its device has computed, those in pauses left out.

        On a GPU those until it has done what it was told, other workers on it included; on a CPU
        those of its threads together over their number, and no less than those of this one.
        Where work has prices, what it did costs so much.
        """
        if self.job.prices is not None:
            return self._priced_s
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return self.clock()
        return _of_processor() - self._stood_cpu_s

    def computed(self, rows: int) -> None:
        """So many images went through other models."""
        if self.job.prices is not None:
            self._priced_s += rows * self.job.prices.row_s

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Exclude what is done inside, such as a pause, from this worker's seconds."""
        if self._is_off_the_clock:
            yield
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # that was told before
        begin, busy = time.perf_counter(), _of_processor()
        self._is_off_the_clock = True
        yield
        self._is_off_the_clock = False
        self._stood_s += time.perf_counter() - begin
        self._stood_cpu_s += _of_processor() - busy

    @contextmanager
    def companions_off_the_clock(self) -> Iterator[None]:
        """Charge what is done inside to this worker, not to those that share its steps."""
        with ExitStack() as stack:
            for sgd in self.companions:
                stack.enter_context(sgd.off_the_clock())
            yield

    def _pause(self, save: Save | None) -> None:
        """It is no training time."""

        def act(now: ChangeRequest) -> None:
            self.control.apply(now)
            if now.save and save is not None:
                save()
                self.job.emit(CheckpointSaved(step=self.steps, worker=self.job.worker))
            elif now.save:  # when it may
                self.job.changes.wants_checkpoint = True

        with self.off_the_clock(), self.companions_off_the_clock():
            self.control.pause(self.source, agree=alone, act=act)

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
        """Those of the steps since `mean_loss` was asked for, as a checkpoint has them."""
        return tuple(torch.stack(self._losses).tolist()) if self._losses else ()

    @losses.setter
    def losses(self, values: tuple[float, ...]) -> None:
        self._losses = list(torch.tensor(values, device=self.device))

    def mean_loss(self) -> float:
        """Mean loss of the steps since the last call; of none it is no number.

        Raises:
            Diverged: that of the last step is none.
        """
        self.refuse_bad_loss()
        losses, self._losses = self._losses, []
        return float(torch.stack(losses).mean()) if losses else float("nan")

    def measure_rate(self, seconds: float = 0.3) -> float:
        """Samples/s of local steps when nothing is waited for; leaves no trace."""
        ids = self.job.samples.batches(0)[0]
        device = self.device
        views = torch.from_numpy(self.job.samples.views(ids, 0)).to(device)
        labels = torch.from_numpy(self.job.samples.labels(ids)).to(device)
        with torch.random.fork_rng():
            model = copy.deepcopy(self.model).train()
            own = TrainStep(self.job.recipe, model, model, device)

            def step() -> None:
                own(hard_loss(self.job.recipe, own.scores(views), labels), 1e-3)

            return len(ids) * steps_per_second(step, least=3, seconds=seconds)

    # What the model says

    @torch.inference_mode()
    def probabilities(
        self, inputs: NDArray[np.uint8], model: Normalised | None = None
    ) -> Tensor:
        """(n, C) of unaugmented images, by its own model or by another one.

        For everybody who wants to know how good it is.
        """
        model = self.model if model is None else model
        model.eval()
        rows = self.job.recipe.evaluate_batch
        pieces = (inputs[at : at + rows] for at in range(0, len(inputs), rows))
        return probabilities(model, pieces, lambda: self.job.pulse(self.steps))

    def train_loss(self, most: int = 5000) -> float:
        """Mean cross entropy on its local data, unaugmented; of so many images at most.

        Of more each class has its share: local data may lie class by class.
        """
        data, ids = self.job.samples.data, self.job.samples.plan.ids
        if len(ids) > most:
            ids = by_class(ids, data.labels, most, 0)[0]
        return log_loss(
            self.probabilities(data.inputs[ids]), torch.from_numpy(data.labels[ids])
        )

    def average_of(self, weights: Weights) -> Normalised:
        """A network with averaged weights, and with statistics that are of them."""
        job, scratch = self.job, self.job.scratch(self.job.worker)
        scratch.net.load_state_dict(dict(weights))
        alive, batch = partial(job.pulse, self.steps), job.recipe.evaluate_batch
        take_statistics_again(scratch, job.samples, job.recalibrate, batch, alive)
        return scratch

    def error_of(self, weights: Weights) -> float:
        """Percent of the validation images that a network with these weights takes for others."""
        data = self.job.samples.data
        said = self.probabilities(data.inputs[data.validation], self.average_of(weights))
        wrong = said.argmax(1).numpy() != data.labels[data.validation]
        return 100 * float(wrong.mean())
