"""Batch-norm statistics taken again, of a network that was put together from parts.

Blocks that were trained apart have seen their teacher's outputs, not each other's. What a batch
norm remembers of them is of other inputs than it gets in the whole student; with statistics of
these, the same weights are worth more. Images are shown as training shows them: a network that
imitates a teacher, whose statistics are of augmented images, is worth less with those of others
(a separable ResNet-20 of CIFAR-10 at 16 pixels: 62.5 % with those of augmented images, 55.5 %
with those of plain ones).
"""

from collections.abc import Callable

import torch
from torch import nn

from kdlab.data.counter_random import permutation
from kdlab.data.samples import PlannedSamples
from kdlab.data.splits import by_class
from kdlab.models.model import Normalised, evaluating
from kdlab.train.sync_norm import GroupBatchNorm


@torch.no_grad()
def take_statistics_again(
    model: Normalised,
    samples: PlannedSamples,
    images: int,
    batch: int,
    alive: Callable[[], None] = lambda: None,
) -> int:
    """Replace what its batch norms remember by means over so many training images.

    Args:
        model: on its device; its weights stay as they are.
        samples: whose training images are shown, each class in its share, as in epoch 0.
        images: of them at most; 0 does nothing.
        batch: images at a time.
        alive: called between batches.

    Returns:
        Norms whose statistics were taken.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.track_running_stats
    ]
    if not norms or not images:
        return 0
    device = next(model.parameters()).device
    # Classes mixed in each batch, however they lie in the data.
    data = samples.data
    rows = permutation(0, 0, by_class(data.train, data.labels, images, 0)[0])
    momenta = [norm.momentum for norm in norms]
    shared = [n for n in norms if isinstance(n, GroupBatchNorm) and not n.alone]
    with evaluating(model):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over all batches
            norm.train()
        for norm in shared:  # the other devices are not asked
            norm.alone = True
        for part in range(0, len(rows), batch):
            alive()
            views = torch.from_numpy(samples.views(rows[part : part + batch], 0))
            if len(views) > 1:
                model(views.to(device))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for norm in shared:
            norm.alone = False
    return len(norms)
