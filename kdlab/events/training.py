"""Events of a training loop, whatever method it is of."""

from collections.abc import Mapping

from msgspec import field

from kdlab.events.event import Event


class StepLogged(Event, spread="figures"):
    """Where the training stands, a few times a second or every so many steps."""

    epoch: int  # whole epochs that are over
    step: int  # steps that are over, of the whole training
    of_steps: int
    loss: float | None  # mean since the last line
    lr: float
    samples_per_second: float  # since the last line
    samples_seen: int  # by the weights as they are
    block_losses: list[float] | None = None  # blockwise: each block's own
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
    """An event of one training loop: the student's, or that of one local model among several."""

    step: int  # that is done
    worker: int | None = None  # number of the local model

    def text(self) -> str:
        """With `who`, where one of several local models did it."""
        who = "" if self.worker is None else f"worker {self.worker}: "
        return self.LINE.format_map(self.facts() | {"who": who})


class CheckpointSaved(LoopEvent, line="{who}checkpoint at step {step}"):
    """Whatever comes, the training can go on from here."""

    path: str | None = None


class Resumed(Event, line="resumed after {epoch} epochs, {step} steps"):
    """The training goes on from a checkpoint."""

    epoch: int  # of local models: rounds
    step: int
    rolled_back: int  # steps that were done and are done again


class SettingsChanged(LoopEvent, line="{who}from step {step} on: "):
    """Somebody changed settings; they hold from the next step on."""

    values: Mapping[str, float]

    def text(self) -> str:
        values = ", ".join(f"{name} = {value:g}" for name, value in self.values.items())
        return f"{super().text()}{values}".removesuffix(": ")


class SettingsReverted(
    SettingsChanged, line="taken back to the checkpoint of step {step}: "
):
    """Somebody had it go on from there; `values` are those that were others then."""


class Paused(LoopEvent, line="{who}paused after step {step}; kdlab control RUN go-on"):
    """Somebody asked for it; memory and teachers are kept."""


class Continued(LoopEvent, line="{who}goes on from step {step}"):
    """A pause is over."""


class CacheStarted(
    Event,
    line="writing soft labels of {samples} samples, {views} views: {megabytes:.3g} MB to "
    "{folder}",
):
    """Soft labels are computed once, before the training."""

    folder: str
    megabytes: float
    samples: int
    views: int  # of each sample


class LabelsStored(Event):
    """All soft labels of a served run are on disk, from now on or from a run before."""

    folder: str
    made_by: dict[str, int]  # labels of each engine; empty for files of before

    def text(self) -> str:
        """Which engines made them, since those of two are not the same to the last bit."""
        made = self.made_by.items()
        makers = ", ".join(
            f"{count:,} by {name or 'an unnamed engine'}" for name, count in made
        )
        text = f"all soft labels are kept in {self.folder}"
        return f"{text}: {makers}" if makers else text


class CacheWritten(Event, line="soft labels written"):
    """All soft labels are on disk."""

    folder: str
    megabytes: float
    samples: int
    views: int
    lost_nats: float | None  # mean KL divergence of what is kept to what the teacher said
