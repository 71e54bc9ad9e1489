"""Events of a training loop, of any method."""

from collections.abc import Mapping

from msgspec import field

from kdlab.events.event import Event


class StepLogged(Event, spread="figures"):
    """Progress of a training, a few times a second or every few steps."""

    epoch: int  # finished epochs
    step: int  # finished steps, of the whole training
    of_steps: int
    loss: float | None  # mean since the last line
    lr: float
    samples_per_second: float  # since the last line
    samples_seen: int  # by the current weights
    block_losses: list[float] | None = None  # blockwise: the loss of each block
    figures: Mapping[str, float] = field(default_factory=dict)  # of the soft-label source


class EpochDone(Event):
    """An epoch is over; percent, and None where it was not validated."""

    epoch: int  # counted from 1
    of_epochs: int
    step: int
    samples_per_second: float  # over the whole training
    samples_lost: int
    samples_repeated: int
    validation_top1: float | None = None
    validation_top5: float | None = None


class LoopEvent(Event, kind=None):
    """An event of one training loop: the student's, or that of a local model."""

    step: int  # last finished step
    worker: int | None = None  # number of the local model

    def text(self) -> str:
        """Format the line with `who`: the worker, where there are several local models."""
        who = "" if self.worker is None else f"worker {self.worker}: "
        return self.LINE.format_map(self.facts() | {"who": who})


class CheckpointSaved(LoopEvent, line="{who}checkpoint at step {step}"):
    """A checkpoint was saved; the training can resume from it."""

    path: str | None = None


class Resumed(Event, line="resumed after {epoch} epochs, {step} steps"):
    """The training resumed from a checkpoint."""

    epoch: int  # of local models: rounds
    step: int
    rolled_back: int  # steps that are done again


class SettingsChanged(LoopEvent, line="{who}from step {step} on: "):
    """A user changed settings; they hold from the next step on."""

    values: Mapping[str, float]

    def text(self) -> str:
        values = ", ".join(f"{name} = {value:g}" for name, value in self.values.items())
        return f"{super().text()}{values}".removesuffix(": ")


class SettingsReverted(SettingsChanged, line="reverted to the checkpoint of step {step}: "):
    """A user reverted to a checkpoint; `values` are the settings that change by it."""


class Paused(
    LoopEvent, line="{who}paused after step {step}; continue: kdlab control RUN go-on"
):
    """A user paused the training; memory and teachers are kept."""


class Continued(LoopEvent, line="{who}continues from step {step}"):
    """A pause is over."""


class CacheStarted(
    Event,
    line="writing soft labels of {samples} samples, {views} views: {megabytes:.3g} MB to "
    "{folder}",
):
    """Soft labels are being computed once, before the training."""

    folder: str
    megabytes: float
    samples: int
    views: int  # of each sample


class LabelsStored(Event):
    """All soft labels of a served run are on disk, written by it or by an earlier run."""

    folder: str
    made_by: dict[str, int]  # labels of each engine; empty for files of older versions

    def text(self) -> str:
        """Name the engines, since labels of two engines differ in the last bits."""
        counts = self.made_by.items()
        makers = ", ".join(
            f"{count:,} by {name or 'an unnamed engine'}" for name, count in counts
        )
        text = f"all soft labels are stored in {self.folder}"
        return f"{text}: {makers}" if makers else text


class CacheWritten(Event, line="soft labels written"):
    """All soft labels are on disk."""

    folder: str
    megabytes: float
    samples: int
    views: int
    lost_nats: float | None  # mean KL divergence of the stored labels to the teacher's
