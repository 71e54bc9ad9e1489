"""Write the events of a run or a sweep to MLflow, while it runs or later."""

import logging
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kdlab.config.home import never_anew
from kdlab.supervision.children import configured
from kdlab.tracking.in_mlflow import MlflowLocation

if TYPE_CHECKING:
    from kdlab.tracking.event_writer import EventWriter

_EVERY_S = 1.0
_GIVE_UP_S = 60.0
_GIVE_UP_AT_END_S = 5.0  # the run has ended and its command waits


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedJob:
    """Configuration of the process that writes events."""

    folder: Path  # of a run or a sweep


def quiet() -> None:
    """Silence messages of MLflow and SQLAlchemy on migrations and deprecations."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="sqlalchemy|mlflow")


def writer_of(folder: Path) -> "EventWriter":
    """The writer of a run, or of a sweep and its trials."""
    quiet()  # before 2 s of imports
    if (folder / "sweep.yaml").is_file():
        from kdlab.tracking.sweep import SweepWriter

        return SweepWriter(folder)
    from kdlab.tracking.writer import Writer

    return Writer(folder)


def sync(folder: Path) -> int:
    """Write the remaining events of a run or a sweep and return their number.

    Raises:
        Exception: that of MLflow; the position is saved, so try again later.
    """
    return writer_of(folder).step()


def log_page(states: Sequence[MlflowLocation], name: str, text: str) -> list[str]:
    """Log a text as an artifact of these MLflow runs; return their ids."""
    quiet()
    from kdlab.tracking.store import client  # 2 s

    for state in states:
        client(str(state.uri)).log_text(state.runs[""], text, name)
    return [state.runs[""] for state in states]


def main() -> None:
    config = configured(FollowedJob)
    never_anew.add(config.folder)
    os.nice(10)  # training comes first, also before what the next line imports
    follow(writer_of(config.folder))


def follow(writer: "EventWriter") -> None:
    """Write events until the end; retry for a while where MLflow fails."""
    failing_since: float | None = None
    writer.resume()
    while not writer.done:
        try:
            writer.step()
            failing_since = None
        except Exception as error:  # MLflow, SQLAlchemy, OSError: all are retried
            logging.warning("events could not be written to MLflow, retrying: %s", error)
            failing_since = failing_since or time.monotonic()
            patience = _GIVE_UP_AT_END_S if writer.has_ended() else _GIVE_UP_S
            if time.monotonic() - failing_since > patience:
                raise SystemExit(
                    "gave up; `kdlab runs --sync` writes the rest from events.jsonl to MLflow"
                ) from error
        time.sleep(_EVERY_S)  # the pace of writing; the loop ends with the run


if __name__ == "__main__":
    main()
