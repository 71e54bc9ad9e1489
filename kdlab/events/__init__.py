"""What happened: one frozen struct for each kind of event, and the log they are written to.

`event` says what an event is; the other files have the kinds, a file for each part of the
house; `log` appends them to a run's `events.jsonl` and reads them back. The kinds are plain
structs without clock or file, so that the papers' machines can report with them.
"""

# All kinds are known to whoever reads one.
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
