"""Events of runs and sweeps: one frozen struct for each kind, and the log that stores them.

`event` defines the base class; the other files have the kinds, one file for each part of
kdlab; `log` appends them to a run's `events.jsonl` and reads them back. The kinds are plain
structs without clock or file, so that the papers' machines can report with them.
"""

# Imported so that a reader of one kind has all kinds.
from kdlab.events import (
    blockwise,
    ensemble,
    general,
    images,
    ranks,
    runs,
    sweeps,
    teachers,
    training,
)

__all__ = [
    "blockwise",
    "ensemble",
    "general",
    "images",
    "ranks",
    "runs",
    "sweeps",
    "teachers",
    "training",
]
