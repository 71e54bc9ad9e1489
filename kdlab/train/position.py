"""Where a training stands."""

from dataclasses import asdict, dataclass, field
from typing import Any

from kdlab.data.plan import BatchPlan


@dataclass(slots=True)
class Position:
    """All of it is in the checkpoint."""

    epoch: int = 0
    step: int = 0  # steps done in all epochs
    done: set[int] = field(default_factory=set)  # batches of this epoch trained on
    first_sample: int = 0  # of this epoch: trained on in batches of another size before
    train_seconds: float = 0.0  # in the loop; evaluation and checkpoints not counted
    best_top1: float = -1.0  # on validation
    best_epoch: int = -1

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"done": sorted(self.done)}

    @classmethod
    def from_checkpoint(cls, facts: dict[str, Any], batch: int) -> "Position":
        """The saved position, for batches of a size that may be another one now.

        What was trained on of the epoch under way stays done; its rest is cut anew.
        """
        saved = dict(facts["position"])
        position = cls(**saved | {"done": set(saved["done"])})
        before = BatchPlan(**facts["plan"] | {"ids": range(facts["samples"])})
        if before.batch != batch and position.done:
            if position.done != set(range(len(position.done))):
                raise ValueError("batches were done out of order; the rest has no start")
            sizes = before.sizes(position.epoch)
            position.first_sample += sum(sizes[: len(position.done)])
            position.done = set()  # an epoch without a rest is closed by the loop
        return position
