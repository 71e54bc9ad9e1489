"""What blockwise distillation is told, and what its checkpoint says."""

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
    """The pairs of blocks and their plan; the same for all ranks but for `rank`."""

    cutting: Cutting
    programme: ExecutionPlan
    norm: Literal["sync", "local"]
    rank: int
    device: torch.device
    recalibrate: int = 0  # images that the whole student's batch norms are shown
    # Of the architecture, when the student is a supernet
    search: ArchitectureSearch | None = None
    # Told by the master what all devices did in an epoch's last steps
    on_trace: Callable[[list[Span]], None] = lambda spans: None


@dataclass(frozen=True, kw_only=True)
class BlockwiseFacts(LoopFacts):
    """A checkpoint's facts: of each block's optimiser, and the plan that was carried out."""

    blocks: list[OptimizerFacts]
    programme: Mapping[str, object]
