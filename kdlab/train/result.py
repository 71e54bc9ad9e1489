"""What became of a training when it has ended: the loop, the method and the run each say a part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kdlab.codec import Count, to_builtins
from kdlab.config.home import find_as, write_json
from kdlab.train.evaluate import Accuracy

_KEPT = "result.json"
Costs = dict[str, dict[str, float]]  # of student and teacher: parameters, latency and so on


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """A member's `result.json`, and the event of its end. Accuracies in percent."""

    # Of its loop
    last: Accuracy  # on test, weights of the last step
    best: Accuracy  # on test, weights of the best epoch on validation
    validation_last: float
    validation_best: float
    best_epoch: int
    epochs: Count
    steps: Count
    samples_per_second: float
    train_seconds: float
    seen: Count
    lost: Count
    repeated: Count
    rolled_back: Count
    figures: dict[str, float]
    model_path: str
    best_path: str
    parameters: Count  # of the student, how many

    # Of its method; what is None it does not have
    # Seconds from the loss of each rank to the next step
    failovers: list[float] = field(default_factory=list)
    # global_top1 and global_top5: percent, of an ensemble's global model
    global_top1: float | None = None
    global_top5: float | None = None
    workers: int | None = None  # local models of an ensemble
    # Mean error of the local models minus that of the global one, in points
    diff_lg: float | None = None
    architecture: str | None = None  # path of what a search found
    # distilled and whole_seconds: where the whole student was trained after its blocks:
    # what the blocks had left, and how long the training after them took
    distilled: Accuracy | None = None
    whole_seconds: float | None = None
    # What a method of one's own reports beside
    more: dict[str, float] = field(default_factory=dict)

    # Of its run: which training it was, and what was around it
    member: str = ""
    source: str = ""
    seed: int = 0
    shares_cores: bool = False  # with its teachers, while it was trained
    wall_seconds: float = 0.0  # with evaluation, checkpoints and waiting
    teacher_top1: float | None = None  # percent on test; None without a teacher
    # Of student and teacher; empty where they could not be measured
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What an earlier session kept; None where it did not come to the end."""
        return find_as(cls, folder / _KEPT, "To train it again, delete it and resume.")

    def write(self, folder: Path) -> None:
        """Last of all: its presence means that the member has ended."""
        write_json(folder / _KEPT, to_builtins(self))
