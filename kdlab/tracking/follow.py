"""Follows the events of a run or a sweep into MLflow, in a process of its own beside it."""

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kdlab.supervision.children import configured
from kdlab.tracking.sync import writer_of

if TYPE_CHECKING:
    from kdlab.tracking.event_writer import EventWriter

_EVERY_S = 1.0
_GIVE_UP_S = 60.0
_GIVE_UP_AT_END_S = 5.0  # the run is over and somebody waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Whose events are written."""

    folder: Path  # of a run or a sweep


def main() -> None:
    config = configured(Followed)
    os.nice(10)  # training comes first, also before what the next line imports
    follow(writer_of(config.folder))


def follow(writer: "EventWriter") -> None:
    """Until it is done; what MLflow does not take is tried again for a while."""
    failing_since: float | None = None
    writer.go_on()
    while not writer.done:
        try:
            writer.step()
            failing_since = None
        except Exception as error:  # MLflow, SQLAlchemy, OSError: all are tried again
            logging.warning("MLflow did not take the events: %s", error)
            failing_since = failing_since or time.monotonic()
            patience = _GIVE_UP_AT_END_S if writer.is_over() else _GIVE_UP_S
            if time.monotonic() - failing_since > patience:
                raise SystemExit(
                    "gave up; `kdlab runs --sync` writes the rest from events.jsonl"
                ) from error
        time.sleep(_EVERY_S)  # the pace of writing; the loop ends with the run


if __name__ == "__main__":
    main()
