"""Location of a run or a sweep in MLflow, read from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kdlab.codec import Count
from kdlab.config.home import find_as

TRACKING = "tracking.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowLocation:
    """Location of a run or a sweep in MLflow: the shared fields of its `tracking.json`."""

    offset: Count = 0  # in events.jsonl: everything before it is in MLflow
    uri: str | None = None
    experiment_id: str | int | None = None
    experiment: str | int | None = None  # of a sweep
    view: bool = False  # the experiment has kdlab's view of its runs
    runs: Mapping[str, str] = field(default_factory=dict)  # by member; "" is the run itself

    @classmethod
    def read(cls, folder: Path) -> "MlflowLocation":
        """Read the location; empty where nothing was written."""
        cure = "Delete it; kdlab runs --sync then writes everything to MLflow again."
        return find_as(cls, folder / TRACKING, cure) or cls()
