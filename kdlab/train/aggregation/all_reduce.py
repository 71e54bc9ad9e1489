"""One student over several ranks: gradients averaged at every step (ring all-reduce)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from kdlab.config import Fault, Range, register
from kdlab.config.spec import POSITIVE
from kdlab.train.aggregation.kind import AggregationSpec

_POSITIVE = Range(ge=1)


@register("train/aggregation/all_reduce")
@dataclass(frozen=True, kw_only=True)
class AllReduce(AggregationSpec):
    """Synchronous training on several ranks that may be lost, replaced and added.

    ranks: processes, each with its share of every batch and its own reader.
    on_size_change: `keep_global_batch` cuts the same batches over fewer or more ranks, so
        the training does not depend on their number; `scale_lr` keeps each rank's rows,
        so batch and learning rate scale with the ranks.
    batch_norm: `sync` takes mean and variance over the rows of all ranks, one message more
        in each direction for each norm: without it a network with batch norm does depend
        on the number of ranks. `local` is each rank's own rows, as plain DDP.
    shares: rows of a batch per rank: `equal`, or in proportion to the speed each rank
        measures at the start.
    replace_lost: start another rank for a lost one; else continue with fewer.
    least: the run fails with fewer ranks than this.
    standby: processes that have imported everything and wait to become a rank.
    hang_s: a rank without a sign of life for this long is killed and replaced. Saving,
        evaluating and the first step, which may compile, are alive however long they take.
    backend: of torch.distributed; auto is nccl where each rank has its own GPU.
    """

    joins = "ranks"

    ranks: Annotated[int, _POSITIVE] = 2
    on_size_change: Literal["keep_global_batch", "scale_lr"] = "keep_global_batch"
    batch_norm: Literal["sync", "local"] = "sync"
    shares: Literal["equal", "measured"] = "equal"
    replace_lost: bool = True
    least: Annotated[int, _POSITIVE] = 1
    standby: Annotated[int, Range(ge=0, le=4)] = 1
    hang_s: Annotated[float, POSITIVE] = 20.0
    backend: Literal["auto", "gloo", "nccl"] = "auto"

    def cross_faults(self) -> Iterator[Fault]:
        if self.least > self.ranks:
            yield Fault("least", f"is {self.least} and ranks is {self.ranks}; at most that")

    @property
    def smallest_batch(self) -> int:
        """Two samples for each rank, so that the plan is the same whatever their number."""
        return 2 * self.ranks
