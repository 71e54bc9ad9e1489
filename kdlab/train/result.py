"""Result of a finished training; the loop, the method and the run each fill in a part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kdlab.codec import Count, to_builtins
from kdlab.config.home import find_as, write_json
from kdlab.train.evaluate import Accuracy

_FILE = "result.json"
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

    # Of its method; None where it has none
    failovers: list[float] = field(
        default_factory=list
    )  # s from a lost rank to the next step
    global_top1: float | None = None  # of the global model of local models, in percent
    global_top5: float | None = None
    workers: int | None = None  # local models of an ensemble
    diff_lg: float | None = (
        None  # Eq. 7 of EC-DNN: mean local minus global error, in points
    )
    architecture: str | None = None  # path of the architecture that a search found
    # Where the whole student is trained after its blocks: the accuracy before that, and its time
    distilled: Accuracy | None = None
    whole_seconds: float | None = None
    more: dict[str, float] = field(default_factory=dict)  # figures of a custom method

    # Of its run
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
        """Read the result of an earlier session; None where it did not finish."""
        return find_as(cls, folder / _FILE, "To train it again, delete it and resume.")

    def write(self, folder: Path) -> None:
        """Write the result, last of all: its presence means that the member has finished."""
        write_json(folder / _FILE, to_builtins(self))
