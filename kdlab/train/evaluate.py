"""Top-1 and top-5 of a model on some rows of a data set, in percent."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kdlab.data.images import ImageData
from kdlab.events.images import ImagesAnswered
from kdlab.models.model import evaluating


@dataclass(frozen=True, slots=True)
class Accuracy:
    top1: float  # percent
    top5: float  # percent; of min(5, classes) guesses
    samples: int


def evaluate(
    model: nn.Module,
    data: ImageData,
    ids: NDArray[np.int64],
    batch: int = 256,
    alive: Callable[[], None] = lambda: None,
) -> Accuracy:
    """Measure the accuracy on unaugmented images; the model's mode is restored.

    `alive` is called between batches: a heartbeat while other ranks wait.
    """
    if not len(ids):
        return Accuracy(float("nan"), float("nan"), 0)
    device = next(model.parameters()).device
    guesses = min(5, len(data.classes))
    hits = np.zeros(2)
    with evaluating(model), torch.inference_mode():
        batches = in_batches(ids, batch)
        for rows, shown in zip(batches, data.shown_ahead(batches), strict=True):
            alive()
            logits = model(torch.from_numpy(shown).to(device))
            labels = torch.from_numpy(data.labels[rows]).to(device)
            right = logits.topk(guesses, dim=1).indices == labels[:, None]
            hits += [float(right[:, 0].sum()), float(right.sum())]
    top1, top5 = 100 * hits / len(ids)
    return Accuracy(float(top1), float(top5), len(ids))


def probabilities(
    infer: Callable[[Tensor], Tensor], shown: Iterable[NDArray[np.uint8]]
) -> NDArray[np.float64]:
    """Compute the class probabilities of images.

    Args:
        infer: (n, C, H, W) uint8 on the CPU to (n, classes) logits on any device.
        shown: batches of images, at least one.

    Returns:
        (N, classes), rows that sum to 1.
    """
    pieces = []
    with torch.inference_mode():
        for rows in shown:
            scores = infer(torch.from_numpy(np.ascontiguousarray(rows)))
            pieces.append(scores.float().softmax(1).cpu().numpy())
    return np.concatenate(pieces)


def answers(
    infer: Callable[[Tensor], Tensor],
    data: ImageData,
    rows: NDArray[np.int64],
    *,
    step: int = 0,
    epoch: int = 0,
) -> ImagesAnswered:
    """Classify at least one image, for the event of this step and epoch."""
    outputs = probabilities(infer, data.shown_ahead([rows]))
    return ImagesAnswered(
        step=step,
        epoch=epoch,
        said=[data.classes[k] for k in outputs.argmax(1)],
        shares=[round(100 * float(share), 2) for share in outputs.max(1)],
    )


def in_batches(rows: NDArray[Any], batch: int = 256) -> list[NDArray[Any]]:
    """Cut rows or images into pieces of `batch`."""
    return [rows[begin : begin + batch] for begin in range(0, len(rows), batch)]
