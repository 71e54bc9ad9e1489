"""The training samples of one run: a data set and the plan that cuts it into batches."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import permutation
from kdlab.data.images import ImageData
from kdlab.data.plan import BatchPlan
from kdlab.data.shards import Shards
from kdlab.papers.shares import shared_rows


@dataclass(frozen=True, slots=True)
class RankPart:
    """Which rows of every batch belong to one rank of a group."""

    rank: int = 0
    shares: tuple[float, ...] = (1.0,)

    def rows(self, size: int) -> slice:
        """This rank's rows of a batch of so many samples."""
        counts = shared_rows(size, self.shares)
        start = sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's local data set, out of all training images."""

    deal: Shards
    worker: int
    workers: int
    least: int  # images of each worker

    def ids(self, data: ImageData) -> NDArray[Any]:
        dealt = self.deal.dealt(data.train, data.labels, self.workers, self.least)
        return dealt[self.worker]

    def facts(self) -> dict[str, Any]:
        own = {"worker": self.worker, "workers": self.workers, "least": self.least}
        return own | {"deal": self.deal.fields()}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Shard":
        return cls(**facts | {"deal": Shards(**facts["deal"])})


@dataclass(frozen=True, slots=True)
class Subset:
    """Some of a local data set, by chance."""

    seed: int
    number: int  # of the draw
    count: int

    def of(self, ids: NDArray[Any]) -> NDArray[Any]:
        return permutation(self.seed, self.number, ids)[: self.count]


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """Implements `soft_labels.source.Samples`; the same in trainer, reader and teacher."""

    data: ImageData
    plan: BatchPlan
    spec: dict[str, Any]  # of the data, so that another process can load it
    part: RankPart = field(default=RankPart())
    shard: Shard | None = None  # None: all training images
    subset: Subset | None = None  # None: all of these

    @property
    def classes(self) -> int:
        return len(self.data.classes)

    @property
    def augmented(self) -> bool:
        return self.data.augment.active

    def batches(self, epoch: int) -> list[NDArray[Any]]:
        """This rank's rows of each batch."""
        whole = self.plan.epoch(epoch)
        if len(self.part.shares) == 1:
            return whole
        return [ids[self.part.rows(len(ids))] for ids in whole]

    def sizes(self, epoch: int) -> tuple[int, ...]:
        """Samples of this rank in each batch."""
        sizes = self.plan.sizes(epoch)
        if len(self.part.shares) == 1:
            return sizes
        rows = {size: self.part.rows(size) for size in set(sizes)}
        return tuple(rows[size].stop - rows[size].start for size in sizes)

    def train_ids(self) -> NDArray[Any]:
        return np.sort(self.plan.ids)

    def views(
        self, ids: NDArray[Any], epoch: int, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        return self.data.views(ids, epoch, out)

    def labels(self, ids: NDArray[Any]) -> NDArray[Any]:
        return self.data.labels[ids]

    def view_key(self) -> dict[str, Any]:
        return {"data": self.data.digest, "augment": self.data.augment.fingerprint()}

    def describe(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "data": self.spec,
            "plan": {
                "batch": plan.batch,
                "seed": plan.seed,
                "epochs": plan.epochs,
                "smallest": plan.smallest,
                "first_epoch": plan.first_epoch,
                "first_sample": plan.first_sample,
            },
            "shard": None if self.shard is None else self.shard.facts(),
            "subset": None if self.subset is None else asdict(self.subset),
            "part": {"rank": self.part.rank, "shares": list(self.part.shares)},
            "view_key": self.view_key(),
        }


def planned(
    data: ImageData,
    spec: dict[str, Any],
    *,
    part: RankPart | None = None,
    shard: Shard | None = None,
    subset: Subset | None = None,
    **plan: Any,
) -> PlannedSamples:
    """The samples of a plan; see `BatchPlan` for its keys (batch, seed, epochs ...)."""
    ids = data.train if shard is None else shard.ids(data)
    if subset is not None:
        ids = subset.of(ids)
    return PlannedSamples(
        data, BatchPlan(ids, **plan), spec, part or RankPart(), shard, subset
    )


def described(data: ImageData, facts: dict[str, Any]) -> PlannedSamples:
    """The samples another process described."""
    part = RankPart(facts["part"]["rank"], tuple(facts["part"]["shares"]))
    shard = None if facts["shard"] is None else Shard.from_facts(facts["shard"])
    subset = None if facts["subset"] is None else Subset(**facts["subset"])
    return planned(
        data, facts["data"], part=part, shard=shard, subset=subset, **facts["plan"]
    )
