"""Algorithm 2, first half: the mean of several models' outputs on some views.

One model after another is loaded into the same place, so memory holds one foreign model
and the sums, whatever their number (section 4.2).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdlab.data.samples import PlannedSamples
from kdlab.losses.local import log_loss
from kdlab.methods.ensemble.exchange import ModelFile, fetch
from kdlab.methods.ensemble.stream import BatchPlace
from kdlab.models.model import Normalised


@dataclass(slots=True)
class Relabelled:
    """Mean probabilities of some batches' rows."""

    mean: Tensor  # (n, C), row by row of the batches one after the other
    model_losses: list[float]  # mean cross entropy of each model with the true labels
    loss: float  # that of the mean
    starts: list[int] = field(default_factory=list)  # first row of each batch
    computed: int = 0  # rows that went through models here, each model's counted

    def of(self, batch: int, size: int) -> Tensor:
        """(size, C) of batch number `batch` of those that were relabelled."""
        start = self.starts[batch]
        return self.mean[start : start + size]


@torch.no_grad()  # not inference_mode: what comes out is trained on
def relabel(
    places: Sequence[BatchPlace],
    samples: PlannedSamples,
    models: Sequence[ModelFile],
    scratch: Callable[[int], Normalised],
    batch: int,
    alive: Callable[[], None] = lambda: None,
) -> Relabelled:
    """The mean of the models' probabilities on the views of these batches.

    A view that comes again is computed once. `scratch` gives a model on the device for a worker's
    weights, to be overwritten; `batch` rows are computed together, and `alive` is called between.
    """
    labels = torch.from_numpy(samples.labels(_ids(places)))
    total = torch.zeros((len(labels), samples.classes))
    losses, (chunks, rows) = [], _distinct(places, samples, batch, alive)
    for file in models:
        model = scratch(file.worker)
        model.net.load_state_dict(fetch(file))
        model.eval()
        views = (samples.views(ids, epoch) for epoch, ids in chunks)
        own = probabilities(model, views, alive)
        own = own if rows is None else own[rows]
        losses.append(log_loss(own, labels))
        total += own
    total /= max(1, len(models))
    computed = len(models) * sum(len(ids) for _, ids in chunks)
    return Relabelled(total, losses, log_loss(total, labels), _starts(places), computed)


def _distinct(
    places: Sequence[BatchPlace],
    samples: PlannedSamples,
    batch: int,
    alive: Callable[[], None],
) -> tuple[list[tuple[int, NDArray[np.int64]]], Tensor | None]:
    """What is to be computed, and for each row which of it; None: each its own.

    Where each image is asked about once at most nothing can come again, so nothing is compared.
    """
    chunks = _chunks(places, batch)
    if sum(len(ids) for _, ids in chunks) <= len(samples.plan.ids):
        return chunks, None
    first: dict[bytes, int] = {}
    by_epoch: dict[int, list[int]] = {}
    rows = []
    for epoch, ids in chunks:
        alive()
        for sample, view in zip(ids, samples.views(ids, epoch), strict=True):
            digest = blake2b(view.tobytes(), digest_size=16).digest()
            if digest not in first:
                first[digest] = len(first)
                by_epoch.setdefault(epoch, []).append(int(sample))
            rows.append(first[digest])
    found = [
        (epoch, np.asarray(some[at : at + batch]))
        for epoch, some in by_epoch.items()
        for at in range(0, len(some), batch)
    ]
    return found, torch.tensor(rows)


def _ids(places: Sequence[BatchPlace]) -> NDArray[np.int64]:
    return np.concatenate([place.ids for place in places])


def _starts(places: Sequence[BatchPlace]) -> list[int]:
    """First row of each batch."""
    return list(accumulate((len(place.ids) for place in places[:-1]), initial=0))


def _chunks(
    places: Sequence[BatchPlace], batch: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """Large pieces of one epoch each: views depend on it."""
    found: list[tuple[int, NDArray[np.int64]]] = []
    for epoch in dict.fromkeys(place.epoch for place in places):
        ids = _ids([place for place in places if place.epoch == epoch])
        found += [(epoch, ids[at : at + batch]) for at in range(0, len(ids), batch)]
    return found


def probabilities(
    model: Normalised, views: Iterable[NDArray[np.uint8]], alive: Callable[[], None]
) -> Tensor:
    """(n, C) of all these views, one array after the other; `alive` is called between."""
    device = next(model.parameters()).device
    found = []
    for some in views:
        alive()
        found.append(model(torch.from_numpy(some).to(device)).float().softmax(1).cpu())
    return torch.cat(found)
