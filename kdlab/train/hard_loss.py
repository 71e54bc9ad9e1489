"""Loss on the true labels: cross entropy, or binary cross entropy of each class."""

from torch import Tensor, arange, full_like
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from kdlab.data.splits import NO_LABEL
from kdlab.train.recipe import Recipe


def hard_loss(recipe: Recipe, scores: Tensor, labels: Tensor) -> Tensor:
    """Average the loss over rows that all have labels; shapes as in `hard_losses`."""
    if recipe.hard_loss == "bce":
        return hard_losses(recipe, scores, labels).mean()
    return cross_entropy(scores, labels, label_smoothing=recipe.label_smoothing)


def hard_losses(recipe: Recipe, scores: Tensor, labels: Tensor) -> Tensor:
    """(N, C) logits, (N,) true classes -> (N,) losses, 0 where there is no label."""
    smoothing = recipe.label_smoothing
    if recipe.hard_loss == "bce":
        return binary_cross_entropy(scores, labels, smoothing)
    return cross_entropy(
        scores, labels, ignore_index=NO_LABEL, label_smoothing=smoothing, reduction="none"
    )


def binary_cross_entropy(scores: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Binary cross entropy of each class, as in "ResNet strikes back" (arXiv:2110.00476, 3).

    Args:
        scores: (N, C) logits.
        labels: (N,) true classes; `NO_LABEL` counts nothing.
        smoothing: spread evenly over all classes.

    Returns:
        (N,) means over the classes, as timm's BinaryCrossEntropy.
    """
    known, classes = labels != NO_LABEL, scores.shape[1]
    targets = full_like(scores, smoothing / classes)
    rows = arange(len(labels), device=labels.device)
    targets[rows, labels.clamp_min(0)] += 1 - smoothing
    each = binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(1)
    return each * known
