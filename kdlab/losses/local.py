"""The two losses of EC-DNN (Eqs. 5 and 6): away from the others, and back to the ensemble.

Both take probabilities of others: the paper averages outputs and feeds them to a cross
entropy, so its f are probabilities. On raw scores the distance of Eq. 5 has no bound, and
SGD follows it for ever.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kdlab.losses.soft_loss import same_shape

_SMALL = 1e-12  # below it the distance has no direction


def diversity_regularised(
    scores: Tensor, hard: Tensor, average: Tensor | None, weight: float
) -> Tensor:
    """Eq. 5: cross entropy minus alpha times the distance from the compressed models.

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
    """Eq. 6: cross entropy with the true labels, and beta times that with the ensemble's.

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
    """Mean cross entropy of probabilities, in nats; of none the smallest float counts."""
    own = probabilities.gather(1, labels[:, None]).squeeze(1)
    smallest = torch.finfo(torch.float32).tiny
    return float(-own.double().clamp_min(smallest).log().mean())
