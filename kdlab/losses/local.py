"""The losses of EC-DNN's local training (Eq. 5) and compression (Eq. 6).

Both take mean probabilities of other models: the paper averages outputs and feeds them to a cross
entropy, so its f are probabilities. On raw scores the distance of Eq. 5 has no bound, and
SGD diverges.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.losses.soft_loss import same_shape

_SMALL = 1e-12  # below it the distance has no direction


def diversity_regularised(
    scores: Tensor, hard: Tensor, average: Tensor | None, weight: float
) -> Tensor:
    """Compute Eq. 5: cross entropy minus alpha times the distance from the compressed models.

    Args:
        scores: (N, C) logits of the local model.
        hard: cross entropy with the true classes, mean over the batch.
        average: (N, C) mean probabilities of the latest compressed models, z-bar; None in
            the first round, which has none.
        weight: alpha.

    Returns:
        Mean over the batch, where the paper has the sum: the learning rate is of a mean.

    Raises:
        ShapeError: scores and average differ in shape.
    """
    if average is None or weight == 0:
        return hard
    same_shape(scores, average)
    squares = (scores.softmax(1) - average).square().sum(1)
    return hard - weight * (squares + _SMALL).sqrt().mean()


def accelerated_compression(
    scores: Tensor, hard: Tensor, pseudo: Tensor, weight: float
) -> Tensor:
    """Compute Eq. 6: cross entropy with the true labels, plus beta times that with the ensemble's.

    Args:
        scores: (N, C) logits of the local model.
        hard: cross entropy with the true classes, mean over the batch.
        pseudo: (N, C) mean probabilities of the local models, y-bar.
        weight: beta.

    Raises:
        ShapeError: scores and pseudo labels differ in shape.
    """
    same_shape(scores, pseudo)
    return hard + weight * cross_entropy(scores, pseudo)


def log_loss(probabilities: Tensor, labels: Tensor) -> float:
    """Compute the mean cross entropy in nats; a probability of 0 counts as the smallest float."""
    at_label = probabilities.gather(1, labels[:, None]).squeeze(1)
    smallest = torch.finfo(torch.float32).tiny
    return float(-at_label.double().clamp_min(smallest).log().mean())
