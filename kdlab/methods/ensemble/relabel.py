"""Mean of several models' outputs on some views (Algorithm 2, first half).

Models are loaded one after the other into the same place, so memory holds one other model and the
sums, whatever their number (section 4.2).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Mean probabilities of the rows of some batches."""

    mean: Tensor  # (n, C), the rows of the batches in order
    model_losses: list[float]  # mean cross entropy of each model with the true labels
    loss: float  # that of the mean
    starts: list[int] = field(default_factory=list)  # first row of each batch
    computed: int = 0  # forward passes of rows, over all models

    def batch_rows(self, batch: int, size: int) -> Tensor:
        """Return the (size, C) rows of batch number `batch`."""
        start = self.starts[batch]
        return self.mean[start : start + size]


@torch.no_grad()  # not inference_mode: the outputs are trained on
def relabel(
    places: Sequence[BatchPlace],
    samples: PlannedSamples,
    models: Sequence[ModelFile],
    scratch: Callable[[int], Normalised],
    batch: int,
    alive: Callable[[], None] = lambda: None,
) -> Relabelled:
    """Average the models' probabilities on the views of these batches.

    A repeated view is computed once. `scratch` returns a model on the device, whose weights are
    overwritten; `batch` rows are computed at once, and `alive` is called between them.
    """
    ids = np.concatenate([place.ids for place in places])
    labels = torch.from_numpy(samples.labels(ids))
    total = torch.zeros((len(labels), samples.classes))
    losses, (chunks, rows) = [], _distinct_views(places, samples, batch, alive)
    for file in models:
        model = scratch(file.worker)
        model.net.load_state_dict(fetch(file))
        model.eval()
        views = (samples.views(ids, epoch) for epoch, ids in chunks)
        outputs = probabilities(model, views, alive)
        outputs = outputs if rows is None else outputs[rows]
        losses.append(log_loss(outputs, labels))
        total += outputs
    total /= max(1, len(models))
    starts = list(accumulate((len(place.ids) for place in places[:-1]), initial=0))
    computed = len(models) * sum(len(ids) for _, ids in chunks)
    return Relabelled(total, losses, log_loss(total, labels), starts, computed)


def _distinct_views(
    places: Sequence[BatchPlace],
    samples: PlannedSamples,
    batch: int,
    alive: Callable[[], None],
) -> tuple[list[tuple[int, NDArray[np.int64]]], Tensor | None]:
    """Return chunks of distinct views, and the view of each row; None: each row is its own view.

    Views are compared only where there are more rows than images.
    """
    by_epoch: dict[int, list[int]] = {}  # an epoch's views differ from those of others
    for place in places:
        by_epoch.setdefault(place.epoch, []).extend(place.ids)
    chunks = _chunks(by_epoch, batch)
    if sum(len(ids) for _, ids in chunks) <= len(samples.plan.ids):
        return chunks, None
    first: dict[bytes, int] = {}
    distinct: dict[int, list[int]] = {}
    rows = []
    for epoch, ids in chunks:
        alive()
        for sample, view in zip(ids, samples.views(ids, epoch), strict=True):
            digest = blake2b(view.tobytes(), digest_size=16).digest()
            if digest not in first:
                first[digest] = len(first)
                distinct.setdefault(epoch, []).append(int(sample))
            rows.append(first[digest])
    return _chunks(distinct, batch), torch.tensor(rows)


def _chunks(
    by_epoch: Mapping[int, Sequence[int]], batch: int
) -> list[tuple[int, NDArray[np.int64]]]:
    """Cut the ids of each epoch into arrays of at most `batch`."""
    return [
        (epoch, np.asarray(ids[at : at + batch], np.int64))
        for epoch, ids in by_epoch.items()
        for at in range(0, len(ids), batch)
    ]


def probabilities(
    model: Normalised, views: Iterable[NDArray[np.uint8]], alive: Callable[[], None]
) -> Tensor:
    """Return the (n, C) probabilities of all views; `alive` is called between the arrays."""
    device = next(model.parameters()).device
    pieces = []
    for array in views:
        alive()
        pieces.append(model(torch.from_numpy(array).to(device)).float().softmax(1).cpu())
    return torch.cat(pieces)
