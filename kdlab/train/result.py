"""What a training reports when it has ended: the loop, the method, and the run add to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from kdlab.codec import Count, plain
from kdlab.config.home import find_as, write_json
from kdlab.train.evaluate import Accuracy

_KEPT = "result.json"
Costs = dict[str, dict[str, float]]  # of student and teacher: parameters, latency and so on


@dataclass(frozen=True, slots=True)
class StudentResult:
    """What a loop reports. Accuracies in percent."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult(StudentResult):
    """What a method reports of one member; what is None it does not have."""

    parameters: Count  # of the student, how many
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

    @classmethod
    def of(cls, result: StudentResult, **more: Any) -> Self:
        """This result, and more of its fields."""
        return cls(**{f.name: getattr(result, f.name) for f in fields(result)} | more)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport(MemberResult):
    """All that is known of a member: its `result.json`, and the event of its end."""

    # member, source and seed: which training it was
    member: str
    source: str
    seed: int
    shares_cores: bool = False  # with its teachers, while it was trained
    wall_seconds: float  # with evaluation, checkpoints and waiting
    teacher_top1: float | None  # percent on test; None without a teacher
    # Of student and teacher; empty where they could not be measured
    costs: Mapping[str, Mapping[str, float]]

    @classmethod
    def read(cls, folder: Path) -> "MemberReport | None":
        """What an earlier session kept; None where it did not come to the end."""
        return find_as(cls, folder / _KEPT, "To train it again, delete it and resume.")

    def write(self, folder: Path) -> None:
        """Last of all: its presence means that the member has ended."""
        write_json(folder / _KEPT, self.to_json())

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found
