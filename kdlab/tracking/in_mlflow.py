"""Where a run or a sweep is in MLflow, as its folder has it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kdlab.codec import Count
from kdlab.config.home import find_as

TRACKING = "tracking.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowLocation:
    """Where a run or a sweep is in MLflow: what all need of its `tracking.json`."""

    offset: Count = 0  # in events.jsonl: all before it is in MLflow
    uri: str | None = None
    experiment_id: str | int | None = None
    experiment: str | int | None = None  # of a sweep
    view: bool = False  # the experiment has one of its runs
    runs: Mapping[str, str] = field(default_factory=dict)  # by member; "" is the run itself

    @classmethod
    def read(cls, folder: Path) -> "MlflowLocation":
        """Empty where nothing was written."""
        cure = "Delete it, and kdlab runs --sync writes all to MLflow once more."
        return find_as(cls, folder / TRACKING, cure) or cls()
