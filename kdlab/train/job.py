"""What every training loop is told, and how its process begins."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kdlab.changes.queue import ChangeQueue
from kdlab.data.samples import PlannedSamples
from kdlab.events.event import Emit
from kdlab.models.memory import keep_freed_memory
from kdlab.train.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopJob:
    """How to train, on what, where to write, and whom to listen to."""

    recipe: Recipe
    samples: PlannedSamples
    seed: int
    folder: Path  # of the member
    spec_hash: str
    emit: Emit
    fence: int = 0  # of this generation of ranks: what an earlier one saves is refused
    stop: Callable[[], bool] = lambda: False  # whether the user asked to stop
    leave: Callable[[], bool] = lambda: False  # whether to save and end this generation
    pulse: Callable[[int], None] = lambda step: None  # a sign of life, with the steps done
    # Rows of images it is asked about after each validation; none of a teacher's own training
    watched: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    # What the user changes while it trains; the first rank's counts
    changes: ChangeQueue = field(default_factory=ChangeQueue)


def begin_process(recipe: Recipe) -> None:
    """Memory and threads of this process, as training wants them."""
    keep_freed_memory()
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
