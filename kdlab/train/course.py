"""How far a training over a plan came: what every loop counts, and how it goes on."""

from pathlib import Path
from typing import TypeVar

from kdlab.data.samples import PlannedSamples
from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.training import EpochDone, Resumed
from kdlab.train.checkpoint import Found
from kdlab.train.evaluate import Accuracy
from kdlab.train.lineage import Lineage, Odometer
from kdlab.train.position import Position, Standing

_At = TypeVar("_At", bound=Standing)


class Course:
    """The accounts of one rank; those of all go on in the master's.

    Args:
        samples: that it trains on.
        folder: of the member.
        emit: events.
        is_master: whether this is rank 0.
    """

    def __init__(
        self, samples: PlannedSamples, folder: Path, emit: Emit, *, is_master: bool
    ) -> None:
        self._batch, self._emit, self.is_master = samples.plan.batch, emit, is_master
        self.position = Position()
        data = samples.data
        self.lineage = Lineage.start(len(data.labels), data.train)
        self.odometer = Odometer(folder / "odometer")

    def go_to(self, found: Found[_At] | None) -> None:
        """Count from where this checkpoint was made; None is the start."""
        if found is not None:
            self.position = found.facts.restored(self._batch)
            counts = found.tensors["lineage.counts"].numpy()
            self.lineage.restore(counts, found.facts.lineage)
        if not self.is_master:
            self.lineage.counts[:] = 0
            return
        undone = max(0, self.odometer.value - self.lineage.seen)
        self.lineage.rolled_back = self.odometer.roll_back(self.lineage.seen)
        if found is None:
            return
        for note in found.notes:
            self._emit(Warned(message=note))
        at = self.position
        self._emit(Resumed(epoch=at.epoch, step=at.step, rolled_back=undone))

    def epoch_done(self, of_epochs: int, seen: Accuracy | None) -> None:
        """Tell of the epoch that was closed, and how good the student was on validation."""
        self._emit(
            EpochDone(
                epoch=self.position.epoch,
                of_epochs=of_epochs,
                step=self.position.step,
                samples_per_second=self.samples_per_second,
                samples_lost=self.lineage.lost,
                samples_repeated=self.lineage.repeated,
                validation_top1=None if seen is None else seen.top1,
                validation_top5=None if seen is None else seen.top5,
            )
        )

    @property
    def samples_per_second(self) -> float:
        """Over the whole training."""
        return self.lineage.seen / max(1e-9, self.position.train_seconds)
