"""Position of a training in its plan."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from kdlab.codec import Amount, Count
from kdlab.data.plan import BatchPlan
from kdlab.train.lineage import LineageCounts

Start = dict[str, int | list[int]]
"""Start of a source: {"epoch": number, "done": its finished batches}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """Fields of a `BatchPlan` in a checkpoint: without its ids."""

    batch: Annotated[int, Meta(ge=1)]
    seed: int
    epochs: Count
    smallest: Count
    first_epoch: Count
    first_sample: Count

    @classmethod
    def from_plan(cls, plan: BatchPlan) -> "SavedPlan":
        return cls(**{f.name: getattr(plan, f.name) for f in fields(cls)})


@dataclass(slots=True)
class Position:
    """Position and best results of a training; all of it is in the checkpoint."""

    epoch: Count = 0
    step: Count = 0  # steps done in all epochs
    done: set[Count] = field(default_factory=set)  # batches of this epoch trained on
    first_sample: Count = 0  # samples of this epoch trained on with another batch size
    train_seconds: Amount = 0.0  # in the loop; evaluation and checkpoints not counted
    best_top1: float = -1.0  # on validation
    best_epoch: int = -1
    looks: list[float] = field(default_factory=list)  # each validation, in percent


@dataclass(frozen=True, kw_only=True)
class LoopFacts:
    """Facts in the checkpoint of any loop over a plan."""

    position: Position
    plan: SavedPlan
    samples: Count
    lineage: LineageCounts
    seed: int
    spec_hash: str

    def restored(self, batch: int) -> Position:
        """Return the saved position, for a batch size that may have changed.

        Samples of the current epoch that were trained on stay done; its rest is cut anew.
        """
        position = replace(
            self.position, done=set(self.position.done), looks=list(self.position.looks)
        )
        before = BatchPlan(ids=np.arange(self.samples), **asdict(self.plan))
        if before.batch != batch and position.done:
            if position.done != set(range(len(position.done))):
                raise ValueError("batches were done out of order; the rest has no start")
            sizes = before.sizes(position.epoch)
            position.first_sample += sum(sizes[: len(position.done)])
            position.done = set()  # the loop closes an epoch without a rest
        return position
