"""The job of a blockwise distillation, and the facts of its checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from kdlab.methods.blockwise.cutting import Cutting
from kdlab.methods.blockwise.search import ArchitectureSearch
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.relay import Span
from kdlab.train.checkpoint import OptimizerFacts
from kdlab.train.job import LoopJob
from kdlab.train.position import LoopFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockwiseJob(LoopJob):
    """The pairs of blocks and their plan; only `rank` and `device` differ between ranks."""

    cutting: Cutting
    programme: ExecutionPlan
    norm: Literal["sync", "local"]
    rank: int
    device: torch.device
    recalibrate: int = 0  # images for new statistics of the whole student's batch norms
    # Of the architecture, where the student is a supernet
    search: ArchitectureSearch | None = None
    # Called on the master with the spans of all devices in an epoch's last steps
    on_trace: Callable[[list[Span]], None] = lambda spans: None


@dataclass(frozen=True, kw_only=True)
class BlockwiseFacts(LoopFacts):
    """Facts of a checkpoint: each block's optimiser, and the plan."""

    blocks: list[OptimizerFacts]
    programme: Mapping[str, object]
