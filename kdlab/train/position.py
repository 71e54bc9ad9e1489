"""Where a training stands."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from kdlab.codec import Amount, Count
from kdlab.data.plan import BatchPlan
from kdlab.train.lineage import LineageCounts

Start = dict[str, int | list[int]]
"""Where a source begins: {"epoch": number, "done": its batches that are finished}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """A `BatchPlan` as a checkpoint has it: without its ids."""

    batch: Annotated[int, Meta(ge=1)]
    seed: int
    epochs: Count
    smallest: Count
    first_epoch: Count
    first_sample: Count

    @classmethod
    def of(cls, plan: BatchPlan) -> "SavedPlan":
        return cls(**{own.name: getattr(plan, own.name) for own in fields(cls)})


@dataclass(slots=True)
class Position:
    """All of it is in the checkpoint."""

    epoch: Count = 0
    step: Count = 0  # steps done in all epochs
    done: set[Count] = field(default_factory=set)  # batches of this epoch trained on
    first_sample: Count = 0  # of this epoch: trained on in batches of another size before
    train_seconds: Amount = 0.0  # in the loop; evaluation and checkpoints not counted
    best_top1: float = -1.0  # on validation
    best_epoch: int = -1
    # Percent on validation of each look, for the plateau schedule
    looks: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LoopFacts:
    """What the checkpoint of any loop over a plan says."""

    position: Position
    plan: SavedPlan
    samples: Count
    lineage: LineageCounts
    seed: int
    spec_hash: str

    def restored(self, batch: int) -> Position:
        """The saved position, for batches of a size that may be another one now.

        What was trained on of the epoch under way stays done; its rest is cut anew.
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
            position.done = set()  # an epoch without a rest is closed by the loop
        return position
