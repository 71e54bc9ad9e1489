"""Mixup and CutMix: two images become one, and the hard label is shared between theirs.

The pair and the share follow from (seed, epoch, sample id), so a reference needs no further
byte: a teacher anywhere mixes the same images as the student (consistent
teaching, Beyer et al. 2022, arXiv:2106.05237).

Source: mixup arXiv:1710.09412; CutMix arXiv:1905.04899, Algorithm A1. Images are mixed one by one,
which timm calls mode `elem`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdlab.data.counter_random import uniforms

_LEVELS = 256  # of a share: pixels are mixed in whole numbers, the same on every machine
_DRAWS = 6  # whether at all, which of the two, share, partner, centre of the box: y, x
_STREAM = 0x6D69786564  # keeps these draws apart from those of the augmentation


class MixRates(NamedTuple):
    """Strength and frequency of mixup and CutMix, named as in timm."""

    mixup_alpha: float  # α of Beta(α, α), from which λ is drawn; 0 is no mixup
    cutmix_alpha: float  # of CutMix
    prob: float  # of a view to be mixed at all
    switch_prob: float  # of CutMix, where both are on

    @property
    def cut_share(self) -> float:
        """Share of the mixed views that CutMix makes."""
        if self.mixup_alpha and self.cutmix_alpha:
            return self.switch_prob
        return 1.0 if self.cutmix_alpha else 0.0


@dataclass(frozen=True, slots=True)
class Mixing:
    """Partner of each view, and the share of the view's own image."""

    partners: NDArray[np.int64]  # (N,) ids of training images
    share: NDArray[np.float64]  # (N,) λ, share of the view's own image; 1 is not mixed
    # (N, 4) top, left, bottom, right from the other; empty for mixup
    boxes: NDArray[np.int64]


def mixing(
    ids: NDArray[np.int64],
    epoch: int,
    pool: NDArray[np.int64],
    size: tuple[int, int],
    seed: int,
    rates: MixRates,
) -> Mixing:
    """Draw partners, shares and boxes for the views of these samples.

    Args:
        ids: (N,) samples.
        epoch: whose views these are.
        pool: (n,) ids of training images, from which partners are drawn.
        size: height and width of a view.
        seed: of the augmentation.
        rates: of mixup and CutMix.
    """
    from scipy.special import betaincinv

    chance = uniforms(seed ^ _STREAM, epoch, ids, _DRAWS)
    cut = chance[:, 1] < rates.cut_share
    alpha = np.where(cut, rates.cutmix_alpha, rates.mixup_alpha)
    drawn = betaincinv(alpha, alpha, chance[:, 2])
    drawn[chance[:, 0] >= rates.prob] = 1.0
    boxes = _boxes(drawn, chance[:, 4:6], *size)
    boxes[~cut] = 0
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    share = np.where(
        cut, 1 - areas / (size[0] * size[1]), np.rint(drawn * _LEVELS) / _LEVELS
    )
    partners = pool[(chance[:, 3] * len(pool)).astype(np.int64)]
    return Mixing(partners, share, boxes)


def _boxes(
    share: NDArray[np.float64], centre: NDArray[np.float64], height: int, width: int
) -> NDArray[np.int64]:
    """(N, 4) boxes around centres with 1 - λ of the area, clipped at the edges."""
    ratio = np.sqrt(1 - share)
    edges = []
    for side, place in ((height, centre[:, 0]), (width, centre[:, 1])):
        half = (side * ratio).astype(np.int64) // 2
        middle = (place * side).astype(np.int64)
        edges.append((np.maximum(middle - half, 0), np.minimum(middle + half, side)))
    (top, bottom), (left, right) = edges
    return np.stack([top, left, bottom, right], axis=1)


def mix(views: NDArray[np.uint8], others: NDArray[np.uint8], how: Mixing) -> None:
    """Mix `others` into `views` in place; both are (N, C, H, W)."""
    for i, (top, left, bottom, right) in enumerate(how.boxes.tolist()):
        if bottom > top and right > left:
            views[i, :, top:bottom, left:right] = others[i, :, top:bottom, left:right]
            continue
        weight = round(float(how.share[i]) * _LEVELS)
        if weight < _LEVELS:
            summed = views[i].astype(np.uint16) * weight
            summed += others[i].astype(np.uint16) * (_LEVELS - weight)
            views[i] = (summed + _LEVELS // 2) >> 8
