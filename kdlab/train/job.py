"""Inputs that all training loops share, and process setup."""

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
    """Recipe, data, folder and callbacks of a training loop."""

    recipe: Recipe
    samples: PlannedSamples
    seed: int
    folder: Path  # of the member
    spec_hash: str
    emit: Emit
    fence: int = 0  # of this generation of ranks; earlier ones cannot save
    stop: Callable[[], bool] = lambda: False  # True once the user asked to stop
    leave: Callable[[], bool] = lambda: False  # True: save and end this generation
    pulse: Callable[[int], None] = lambda step: None  # heartbeat, with the steps done
    # Rows of images to classify after each validation; empty when a teacher is trained
    watched: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    # Changes of the user while it trains; the first rank's count
    changes: ChangeQueue = field(default_factory=ChangeQueue)


def begin_process(recipe: Recipe) -> None:
    """Set memory and threads of this process for training."""
    keep_freed_memory()
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
