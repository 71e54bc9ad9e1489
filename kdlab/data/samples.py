"""The training samples of a run: a data set and the plan of its batches."""

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
    """The rows of every batch that belong to one rank of a group."""

    rank: int = 0
    shares: tuple[float, ...] = (1.0,)

    def rows(self, size: int) -> slice:
        """This rank's rows of a batch of `size` samples."""
        counts = shared_rows(size, self.shares)
        start = sum(counts[: self.rank])
        return slice(start, start + counts[self.rank])


@dataclass(frozen=True, slots=True)
class Shard:
    """Local data set of one worker, a part of the training images."""

    deal: Shards
    worker: int
    workers: int
    least: int  # images that each worker has at least

    def ids(self, data: ImageData) -> NDArray[np.int64]:
        dealt = self.deal.dealt(data.train, data.labels, self.workers, self.least)
        return dealt[self.worker]


@dataclass(frozen=True, slots=True)
class Subset:
    """A random subset of a local data set."""

    seed: int
    number: int  # of the draw
    count: int

    def draw(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return permutation(self.seed, self.number, ids)[: self.count]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDescription:
    """Description from which another process makes the same samples (`described`)."""

    data: Mapping[str, object]  # spec of the data set
    plan: Mapping[str, int]  # fields of `BatchPlan` except the ids
    shard: Shard | None
    subset: Subset | None
    part: RankPart
    view_key: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlannedSamples:
    """Implements `soft_labels.source.Samples`; equal in trainer, reader and teacher."""

    data: ImageData
    plan: BatchPlan
    spec: Mapping[str, object]  # of the data, so that another process can load it
    part: RankPart = field(default=RankPart())
    shard: Shard | None = None  # None: all training images
    subset: Subset | None = None  # None: the whole local data set

    @property
    def classes(self) -> int:
        return len(self.data.classes)

    @property
    def augmented(self) -> bool:
        return self.data.augment.active or self.data.augment.mixes

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """This rank's rows of each batch."""
        full_batches = self.plan.epoch(epoch)
        if len(self.part.shares) == 1:
            return full_batches
        return [ids[self.part.rows(len(ids))] for ids in full_batches]

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
        """Partners' labels and the share of a view's own image; None without mixup and CutMix."""
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
    """Samples of a plan; see `BatchPlan` for its keys (batch, seed, epochs ...)."""
    if data.sampling.labelled_only:
        spec = {**spec, "sampling": data.sampling.to_dict()}
    ids = data.train if shard is None else shard.ids(data)
    if subset is not None:
        ids = subset.draw(ids)
    sampler = Sampler(data.sampling, data.labels) if data.sampling.active else None
    return PlannedSamples(
        data,
        BatchPlan(ids, sampler=sampler, **plan),
        spec,
        part or RankPart(),
        shard,
        subset,
    )


def described(data: ImageData, description: SampleDescription) -> PlannedSamples:
    """Samples from the description of another process."""
    spec, plan = description.data, description.plan
    part, shard, subset = description.part, description.shard, description.subset
    return planned(data, spec, part=part, shard=shard, subset=subset, **plan)
