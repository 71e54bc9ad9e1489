"""The training samples of one run: a data set and the plan that cuts it into batches."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kdlab.config.kept import key_of
from kdlab.data.counter_random import permutation
from kdlab.data.images import ImageData
from kdlab.data.plan import BatchPlan
from kdlab.data.sampling import Sampler
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

    def ids(self, data: ImageData) -> NDArray[np.int64]:
        dealt = self.deal.dealt(data.train, data.labels, self.workers, self.least)
        return dealt[self.worker]


@dataclass(frozen=True, slots=True)
class Subset:
    """Some of a local data set, by chance."""

    seed: int
    number: int  # of the draw
    count: int

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return permutation(self.seed, self.number, ids)[: self.count]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDescription:
    """Samples as another process makes them again (`described`)."""

    data: Mapping[str, object]  # spec of the data set
    plan: Mapping[str, int]  # fields of `BatchPlan`, but for the ids
    shard: Shard | None
    subset: Subset | None
    part: RankPart
    view_key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """Implements `soft_labels.source.Samples`; the same in trainer, reader and teacher."""

    data: ImageData
    plan: BatchPlan
    spec: Mapping[str, object]  # of the data, so that another process can load it
    part: RankPart = field(default=RankPart())
    shard: Shard | None = None  # None: all training images
    subset: Subset | None = None  # None: all of these

    @property
    def classes(self) -> int:
        return len(self.data.classes)

    @property
    def augmented(self) -> bool:
        return self.data.augment.active or self.data.augment.mixes

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
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

    def train_ids(self) -> NDArray[np.int64]:
        return np.sort(self.plan.ids)

    def views(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        return self.data.views(ids, epoch, out)

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Views of each of these batches, in order."""
        return self.data.views_ahead(batches, epoch)

    def labels(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.data.labels[self.data.rows(ids)]

    def mixed_labels(
        self, ids: NDArray[np.int64], epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Labels of what is mixed into these views, and their own share; None: nothing ever is."""
        how = self.data.mixing(ids, epoch)
        if how is None:
            return None
        return self.labels(how.partners), how.share.astype(np.float32)

    def view_key(self) -> dict[str, str]:
        key = {"data": self.data.digest, "augment": self.data.augment.fingerprint()}
        if self.data.augment.mixes:  # with which images
            key["mixed"] = key_of(self.data.train.tobytes())
        return key

    def describe(self) -> SampleDescription:
        return SampleDescription(
            data=self.spec,
            plan=self.plan.facts(),
            shard=self.shard,
            subset=self.subset,
            part=self.part,
            view_key=self.view_key(),
        )


def planned(
    data: ImageData,
    spec: Mapping[str, object],
    *,
    part: RankPart | None = None,
    shard: Shard | None = None,
    subset: Subset | None = None,
    **plan: int,
) -> PlannedSamples:
    """The samples of a plan; see `BatchPlan` for its keys (batch, seed, epochs ...)."""
    if data.sampling.labelled_only:
        spec = {**spec, "sampling": data.sampling.to_dict()}
    ids = data.train if shard is None else shard.ids(data)
    if subset is not None:
        ids = subset.of(ids)
    sampler = Sampler(data.sampling, data.labels) if data.sampling.active else None
    return PlannedSamples(
        data,
        BatchPlan(ids, sampler=sampler, **plan),
        spec,
        part or RankPart(),
        shard,
        subset,
    )


def described(data: ImageData, of: SampleDescription) -> PlannedSamples:
    """The samples another process described."""
    return planned(data, of.data, part=of.part, shard=of.shard, subset=of.subset, **of.plan)
