"""Augmentation on uint8 batches that replays exactly from (seed, epoch, sample id).

Every random choice comes from `counter_random`, and every operation of numpy, torch or Pillow
works on 8 bits, so two processes make the same bytes in any batch order.
Geometry follows torchvision's RandomCrop, RandomResizedCrop and RandomErasing, and Cutout
(arXiv:1708.04552); erased parts are mid grey here, since views stay uint8
and are normalised at the model. Policies are in policies.py.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from kdlab.config.kept import key_of
from kdlab.config.spec import NOT_NEGATIVE, Range, Spec
from kdlab.data.counter_random import uniforms
from kdlab.data.encoded.decode import Box, Interpolation, resized_planes
from kdlab.data.mixing import MixRates
from kdlab.errors import Fault

if TYPE_CHECKING:
    from PIL import Image

    from kdlab.data.policies import Operation

Images = NDArray[np.uint8]  # (N, C, H, W)
Boxes = Callable[[int, int, int], Box]  # (number of the sample, its height, width)

_TRIES = 10  # of a resized crop and an erased part, as in torchvision
_MOST_OPS = 8  # of a policy
_POLICIES = ("rand_augment", "trivial_augment_wide", "three_augment")
# Numbers per sample and epoch: flip 0, crop 1-2, cutout 3-4 (5-7 are free); then the tries of a
# resized crop, those of a policy, of the colours, of an erased part.
_DRAWS = 8
_BOX = slice(_DRAWS, _DRAWS + 2 * _TRIES + 2)
_POLICY = slice(_BOX.stop, _BOX.stop + 2 * _MOST_OPS)
_COLOURS = slice(_POLICY.stop, _POLICY.stop + 8)
_ERASED = slice(_COLOURS.stop, _COLOURS.stop + 2 * _TRIES + 3)
_GREY = 128
_LOG_RATIO = math.log(4 / 3)  # of the sides of a resized crop, at most
_ERASED_SHARE, _ERASED_RATIO = (0.02, 0.33), (0.3, 3.3)  # of the area; of the sides
_FIRST = ("flip", "crop_padding", "resized_crop", "cutout", "seed")  # fields of release 0.1
VERSION = 1  # raise when a view changes for the same spec: caches of labels depend on it
_CROPS = 2  # version of views with a resized crop


@dataclass(frozen=True, kw_only=True)
class Augment(Spec):
    """Random views of training images; everything off by default.

    crop_padding: pixels of zero padding on each side before a crop of the same size.
    resized_crop: smallest share of the area kept, ratio 3/4 to 4/3; null is off.
    policy: `rand_augment` (num_ops, magnitude), `trivial_augment_wide` or `three_augment`, as
        torchvision and DeiT III define them; or timm's RandAugment, such as
        `rand-m9-mstd0.5-inc1` (m of 10, mstd, inc, p, n up to 4).
    num_ops: operations of `rand_augment`.
    magnitude: of `rand_augment`, of 30.
    brightness, contrast, saturation, hue: of torchvision's ColorJitter.
    cutout: side in pixels of the square that is greyed out.
    erasing: probability of torchvision's RandomErasing, 0.02 to 0.33 of the area.
    mixup_alpha, cutmix_alpha: of Beta(α, α), from which the share of two images is drawn; 0 is off.
    mixup_prob: of a view to be mixed at all, as timm calls it.
    mixup_switch_prob: of CutMix where both are on.
    """

    flip: bool = False
    crop_padding: Annotated[int, Range(ge=0)] = 0
    resized_crop: Annotated[float, Range(gt=0, le=1)] | None = None
    policy: str | None = None
    num_ops: Annotated[int, Range(ge=1, le=_MOST_OPS)] = 2
    magnitude: Annotated[int, Range(ge=0, le=30)] = 9
    brightness: Annotated[float, NOT_NEGATIVE] = 0.0
    contrast: Annotated[float, NOT_NEGATIVE] = 0.0
    saturation: Annotated[float, NOT_NEGATIVE] = 0.0
    hue: Annotated[float, Range(ge=0, le=0.5)] = 0.0
    cutout: Annotated[int, Range(ge=0)] = 0
    erasing: Annotated[float, Range(ge=0, le=1)] = 0.0
    mixup_alpha: Annotated[float, NOT_NEGATIVE] = 0.0
    cutmix_alpha: Annotated[float, NOT_NEGATIVE] = 0.0
    mixup_prob: Annotated[float, Range(ge=0, le=1)] = 1.0
    mixup_switch_prob: Annotated[float, Range(ge=0, le=1)] = 0.5
    seed: int = 0

    def cross_faults(self) -> Iterator[Fault]:
        if self.policy is None or self.policy in _POLICIES:
            return
        from kdlab.data.policies import is_timms

        if not is_timms(self.policy):
            known = f"{', '.join(_POLICIES)}, or timm's such as rand-m9-mstd0.5-inc1"
            yield Fault("policy", f"is {self.policy!r}, must be one of {known}")

    @property
    def mixes(self) -> bool:
        """True where mixup or CutMix is on."""
        return bool(self.mixup_prob and (self.mixup_alpha or self.cutmix_alpha))

    @property
    def mix_rates(self) -> MixRates:
        alphas = self.mixup_alpha, self.cutmix_alpha
        return MixRates(*alphas, self.mixup_prob, self.mixup_switch_prob)

    @property
    def active(self) -> bool:
        return bool(self.resized_crop or self.after_crop)

    @property
    def after_crop(self) -> bool:
        """True where an operation follows the resized crop."""
        geometry = self.flip or self.crop_padding or self.cutout or self.erasing
        return bool(geometry or self._recolours)

    @property
    def _recolours(self) -> bool:
        jitter = self.brightness or self.contrast or self.saturation or self.hue
        return bool(self.policy or jitter)

    def fingerprint(self) -> str:
        """Key of everything the views depend on beside the images; caches of labels use it."""
        off = Augment().to_dict()
        fields = {k: v for k, v in self.to_dict().items() if k in _FIRST or v != off[k]}
        fields |= {"version": VERSION} | ({"crops": _CROPS} if self.resized_crop else {})
        return key_of(json.dumps(fields, sort_keys=True))

    def boxes(self, ids: NDArray[np.int64], epoch: int) -> Boxes | None:
        """Function from a number in `ids`, height and width to the part to resize.

        None without a resized crop.
        """
        smallest = self.resized_crop
        if smallest is None:
            return None
        chance = uniforms(self.seed, epoch, ids, _BOX.stop)[:, _BOX].tolist()
        return lambda i, height, width: _box(chance[i], smallest, height, width)

    def views(
        self,
        images: Images,
        ids: NDArray[np.int64],
        epoch: int,
        interpolation: Interpolation = "bilinear",
    ) -> Images:
        """The views of these samples in this epoch.

        Args:
            images: (N, C, H, W) the samples, in the order of `ids`; not changed.
            ids: (N,) rows of the data set.
            epoch: which view; the same number gives the same bytes.
            interpolation: of a resized crop.
        """
        boxes = self.boxes(ids, epoch)
        if boxes is not None:
            images = _resized_crop(images, boxes, interpolation)
        return self.changed(images, ids, epoch) if self.after_crop else images

    def changed(self, images: Images, ids: NDArray[np.int64], epoch: int) -> Images:
        """Apply all operations but the resized crop."""
        chance = uniforms(self.seed, epoch, ids, self._draws)
        if self.crop_padding:
            images = _padded_crop(images, chance[:, 1:3], self.crop_padding)
        if self.flip:
            flip = chance[:, 0] < 0.5
            images = images.copy()  # and not `where`, which takes five times as long
            images[flip] = _mirrored(images[flip])
        if self._recolours:
            images = self._recoloured(images, chance)
        if self.cutout:
            images = _cutout(images, chance[:, 3:5], self.cutout)
        if self.erasing:
            images = _erased(images, chance[:, _ERASED], self.erasing)
        return np.ascontiguousarray(images)

    @property
    def _draws(self) -> int:
        if self.erasing:
            return _ERASED.stop
        return _COLOURS.stop if self._recolours else _DRAWS

    def _recoloured(self, images: Images, chance: NDArray[np.float64]) -> Images:
        from kdlab.data import policies

        result = np.empty(images.shape, np.uint8)
        for i, pixels in enumerate(images):
            image = _picture(pixels)
            operations = self._operations(chance[i], (image.height, image.width))
            changed = np.atleast_3d(np.asarray(policies.changed(image, operations)))
            result[i] = changed.transpose(2, 0, 1)
        return result

    def _operations(
        self, chance: NDArray[np.float64], size: tuple[int, int]
    ) -> "list[Operation]":
        """Operations on the colours and the shape of one image."""
        from kdlab.data import policies

        draws = chance[_POLICY].tolist()
        by_name: Mapping[str | None, Callable[[], Iterable[Operation]]] = {
            None: list,
            "rand_augment": lambda: policies.rand_augment(
                draws, self.num_ops, self.magnitude, size
            ),
            "trivial_augment_wide": lambda: policies.trivial_augment(draws),
            "three_augment": lambda: policies.three_augment(draws),
            "timm's": lambda: policies.timm_augment(draws, str(self.policy)),
        }
        jitter = (self.brightness, self.contrast, self.saturation, self.hue)
        colours = policies.color_jitter(chance[_COLOURS].tolist(), *jitter)
        return [*by_name.get(self.policy, by_name["timm's"])(), *colours]


def _box(chance: list[float], smallest: float, height: int, width: int) -> Box:
    """The first try that fits, as in torchvision's RandomResizedCrop.

    Draws 2k and 2k + 1 are area and ratio of try k, the last two the place. Without a fit it is the
    largest centre part with an allowed ratio.
    """
    for k in range(_TRIES):
        area = height * width * (smallest + (1 - smallest) * chance[2 * k])
        w, h = _sides(area, _LOG_RATIO * (2 * chance[2 * k + 1] - 1))
        if 0 < w <= width and 0 < h <= height:
            top = int(chance[-2] * (height - h + 1))
            return Box(int(chance[-1] * (width - w + 1)), top, w, h)
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def _padded_crop(images: Images, chance: NDArray[np.float64], pad: int) -> Images:
    n, channels, height, width = images.shape
    # As np.pad, which takes four times as long.
    padded = np.zeros((n, channels, height + 2 * pad, width + 2 * pad), np.uint8)
    padded[:, :, pad : pad + height, pad : pad + width] = images
    # windows[i, :, y, x] is the crop of image i whose corner is (y, x)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), (2, 3))
    corner = (chance * (2 * pad + 1)).astype(np.int64)
    return windows[np.arange(n), :, corner[:, 0], corner[:, 1]]


def _cutout(images: Images, chance: NDArray[np.float64], side: int) -> Images:
    corners = (chance * images.shape[2:]).astype(np.int64) - side // 2
    images = images.copy()
    for i, (top, left) in enumerate(corners.tolist()):
        images[i, :, max(0, top) : top + side, max(0, left) : left + side] = _GREY
    return images


def _mirrored(images: Images) -> Images:
    """Rows reversed, eight bytes at a time where the width allows: twice as fast."""
    if images.shape[-1] % 8:
        return images[..., ::-1]
    return images.view(np.uint64)[..., ::-1].byteswap().view(np.uint8)


def _resized_crop(images: Images, boxes: Boxes, interpolation: Interpolation) -> Images:
    result = np.empty_like(images)
    height, width = images.shape[2:]
    for i, planes in enumerate(images):
        box = boxes(i, height, width)
        part = planes[:, box.top : box.top + box.height, box.left : box.left + box.width]
        result[i] = resized_planes(part, (height, width), interpolation)
    return result


def _picture(planes: Images) -> "Image.Image":
    """(C, H, W) for Pillow, by plane: a transposed copy takes three times as long."""
    from PIL import Image

    pixels = np.empty((*planes.shape[1:], len(planes)), np.uint8)
    for c, plane in enumerate(planes):
        pixels[..., c] = plane
    return Image.fromarray(pixels[..., 0] if len(planes) == 1 else pixels)


def _sides(area: float, log_ratio: float) -> tuple[int, int]:
    """Two sides in pixels of an area; `log_ratio` is that of the first to the second."""
    ratio = math.exp(log_ratio)
    return round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))


def _erased(images: Images, chance: NDArray[np.float64], share: float) -> Images:
    """Grey out a part in a share of the images: the first try that fits, as in torchvision."""
    _, _, height, width = images.shape
    images = images.copy()
    lowest, highest = (math.log(ratio) for ratio in _ERASED_RATIO)
    for i in np.flatnonzero(chance[:, 0] < share):
        draws = chance[i, 1:].tolist()
        for k in range(_TRIES):
            least, most = _ERASED_SHARE
            area = height * width * (least + (most - least) * draws[2 * k])
            h, w = _sides(area, lowest + (highest - lowest) * draws[2 * k + 1])
            if h < height and w < width:
                top = int(draws[-2] * (height - h + 1))
                left = int(draws[-1] * (width - w + 1))
                images[i, :, top : top + h, left : left + w] = _GREY
                break
    return images
