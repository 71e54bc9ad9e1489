"""Operations on colour and shape as torchvision and timm define them, one image at a time.

The caller passes random numbers from 0 to 1; Pillow does the work on 8 bits. With equal parameters
each operation makes the same bytes as torchvision's on a Pillow image, and as timm's RandAugment,
which tests hold.

RandAugment is arXiv:1909.13719, TrivialAugment arXiv:2103.10158, 3-Augment section 4 of DeiT III
(arXiv:2204.07118).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

_BINS = 31  # of a magnitude
_PLAIN = Image.Resampling.NEAREST
_SMOOTH = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
# Mean of ImageNet, with which timm fills.
_MEAN: Mapping[str, int | tuple[int, ...]] = {"RGB": (124, 116, 104), "L": 117}
# timm's RandAugment: magnitude, its deviation, increasing or not, probability, operations
_TIMMS = re.compile(r"rand(-(m(10|\d)|mstd\d\d?(\.\d+)?|inc[01]|p(0(\.\d+)?|1)|n[1-4]))*")


class Operation(NamedTuple):
    """One change of an image."""

    name: str  # in torchvision or timm
    magnitude: float = 0.0
    resample: Image.Resampling = _PLAIN  # of operations that move pixels


class Magnitudes(NamedTuple):
    """Range of the magnitudes of an operation, from no effect to the strongest."""

    begin: float
    end: float
    signed: bool = False  # either direction

    def at(self, step: int) -> float:
        """The magnitude of one of `_BINS` steps."""
        return self.begin + (self.end - self.begin) * step / (_BINS - 1)


def _hue(image: Image.Image, share: float) -> Image.Image:
    """Shift the hue by a share of the colour circle; grey images stay."""
    if image.mode != "RGB":
        return image
    hue, saturation, value = image.convert("HSV").split()
    turned = np.asarray(hue) + np.uint8(int(share * 255) % 256)  # past 255 begins at 0
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


# By magnitude, width and height
_MATRICES: Mapping[str, Callable[[float, int, int], tuple[float, ...]]] = {
    "ShearX": lambda m, w, h: (1, m, 0, 0, 1, 0),
    "ShearY": lambda m, w, h: (1, 0, 0, m, 1, 0),
    "TranslateX": lambda m, w, h: (1, 0, -int(m), 0, 1, 0),
    "TranslateY": lambda m, w, h: (1, 0, 0, 0, 1, -int(m)),
    "TranslateXRel": lambda m, w, h: (1, 0, m * w, 0, 1, 0),
    "TranslateYRel": lambda m, w, h: (1, 0, 0, 0, 1, m * h),
}
_OPERATIONS: Mapping[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda image, m: image,
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1 + m),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(1 + m),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(1 + m),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(1 + m),
    "Hue": _hue,
    # Pillow refuses to keep no bit, which makes black.
    "Posterize": lambda image, m: image.point(
        [i & -(2 ** (8 - int(m))) for i in range(256)] * len(image.getbands())
    ),
    "Solarize": lambda image, m: ImageOps.solarize(image, int(np.ceil(m))),
    "SolarizeAdd": lambda image, m: image.point(
        [min(255, i + int(m)) if i < 128 else i for i in range(256)] * len(image.getbands())
    ),
    "Invert": lambda image, m: ImageOps.invert(image),
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
    "Grayscale": lambda image, m: image.convert("L").convert(image.mode),
    "GaussianBlur": lambda image, m: image.filter(ImageFilter.GaussianBlur(m)),
}


def changed(image: Image.Image, operations: Sequence[Operation]) -> Image.Image:
    """Apply operations to an image, one after the other."""
    for name, magnitude, resample in operations:
        fill = None if resample == _PLAIN else _MEAN[image.mode]
        if name == "Rotate":
            image = image.rotate(magnitude, resample, fillcolor=fill)
        elif name in _MATRICES:
            how, matrix = Image.Transform.AFFINE, _MATRICES[name](magnitude, *image.size)
            image = image.transform(image.size, how, matrix, resample, fillcolor=fill)
        else:
            image = _OPERATIONS[name](image, magnitude)
    return image


def rand_augment(
    chance: Sequence[float], num_ops: int, magnitude: int, size: tuple[int, int]
) -> Iterator[Operation]:
    """RandAugment: `num_ops` of fourteen operations, all of one magnitude.

    Args:
        chance: two numbers from 0 to 1 for each operation.
        num_ops: how many.
        magnitude: from 0 to 30.
        size: (height, width) of the image.
    """
    height, width = size
    space = _space(0.3, 150 / 331 * width, 150 / 331 * height, 30.0, 0.9, 4)
    for k in range(num_ops):
        yield _drawn(space, chance[2 * k], magnitude, chance[2 * k + 1])


def is_timms(policy: str) -> bool:
    """Return whether a policy is a RandAugment in timm's notation, e.g. rand-m9-mstd0.5-inc1."""
    return _TIMMS.fullmatch(policy) is not None


def timm_augment(chance: Sequence[float], policy: str) -> Iterator[Operation]:
    """Operations of timm's RandAugment.

    Args:
        chance: four numbers from 0 to 1 for each operation: which, whether, magnitude, and one
            for the sign (its half) and the filter (its quarter).
        policy: in timm's notation (`is_timms`).
    """
    fields = {key: float(value) for key, value in re.findall(r"-([a-z]+)([\d.]+)", policy)}
    settings = {"m": 10.0, "mstd": 0.0, "inc": 0.0, "p": 0.5, "n": 2.0} | fields
    for k in range(int(settings["n"])):
        which, gate, much, way = chance[4 * k : 4 * k + 4]
        magnitude = settings["m"]
        if settings["mstd"]:
            magnitude = NormalDist(magnitude, settings["mstd"]).inv_cdf(max(much, 2.0**-53))
        share, sign = min(10.0, max(0.0, magnitude)) / 10, 1 if way <= 0.5 else -1
        space = _timm_space(share, sign, increasing=bool(settings["inc"]))
        if gate <= settings["p"]:
            yield Operation(*space[int(which * len(space))], _SMOOTH[int(4 * way) % 2])


def _timm_space(
    share: float, sign: int, *, increasing: bool
) -> tuple[tuple[str, float], ...]:
    """Fifteen operations in timm's order, at a share of the highest magnitude (10)."""
    bits, level = int(share * 4), min(256, int(share * 256))
    factor = max(-0.9, sign * share * 0.9) if increasing else share * 1.8 - 0.9
    return (
        *(("AutoContrast", 0), ("Equalize", 0), ("Invert", 0)),
        ("Rotate", sign * share * 30),
        ("Posterize", 4 - bits if increasing else bits),
        ("Solarize", 256 - level if increasing else level),
        ("SolarizeAdd", min(128, int(share * 110))),
        *((name, factor) for name in ("Color", "Contrast", "Brightness", "Sharpness")),
        *(("ShearX", sign * share * 0.3), ("ShearY", sign * share * 0.3)),
        *(("TranslateXRel", sign * share * 0.45), ("TranslateYRel", sign * share * 0.45)),
    )


def trivial_augment(chance: Sequence[float]) -> Iterator[Operation]:
    """TrivialAugment (wide): one operation of random magnitude, from three numbers in 0 to 1."""
    space = _space(0.99, 32.0, 32.0, 135.0, 0.99, 6)
    yield _drawn(space, chance[0], int(chance[1] * _BINS), chance[2])


def three_augment(chance: Sequence[float]) -> Iterator[Operation]:
    """3-Augment: grayscale, solarise or blur, from two numbers in 0 to 1."""
    choice = int(chance[0] * 3)
    yield (
        Operation("Grayscale"),
        Operation("Solarize", 128),
        Operation("GaussianBlur", 0.1 + 1.9 * chance[1]),
    )[choice]


def color_jitter(
    chance: Sequence[float],
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> Iterator[Operation]:
    """ColorJitter: factors around 1, the hue by a share around 0, in random order.

    Args:
        chance: eight numbers from 0 to 1, four for the magnitudes and four for the order.
        brightness: largest difference of the factor from 1.
        contrast: largest difference of the factor from 1.
        saturation: largest difference of the factor from 1.
        hue: largest shift, as a share of the colour circle.
    """
    drawn, names = [], ("Brightness", "Contrast", "Color", "Hue")
    mosts = (brightness, contrast, saturation, hue)
    for k, (name, most) in enumerate(zip(names, mosts, strict=True)):
        if most:
            least = -most if name == "Hue" else max(-1.0, -most)
            magnitude = least + (most - least) * float(chance[k])
            drawn.append((float(chance[4 + k]), Operation(name, magnitude)))
    yield from (operation for _, operation in sorted(drawn))


def _space(
    shear: float, across: float, down: float, rotate: float, colour: float, bits: int
) -> tuple[tuple[str, Magnitudes], ...]:
    """Fourteen operations with their magnitudes, in torchvision's order."""
    return (
        ("Identity", Magnitudes(0, 0)),
        ("ShearX", Magnitudes(0, shear, signed=True)),
        ("ShearY", Magnitudes(0, shear, signed=True)),
        ("TranslateX", Magnitudes(0, across, signed=True)),
        ("TranslateY", Magnitudes(0, down, signed=True)),
        ("Rotate", Magnitudes(0, rotate, signed=True)),
        ("Brightness", Magnitudes(0, colour, signed=True)),
        ("Color", Magnitudes(0, colour, signed=True)),
        ("Contrast", Magnitudes(0, colour, signed=True)),
        ("Sharpness", Magnitudes(0, colour, signed=True)),
        ("Posterize", Magnitudes(8, 8 - bits)),
        ("Solarize", Magnitudes(255, 0)),
        ("AutoContrast", Magnitudes(0, 0)),
        ("Equalize", Magnitudes(0, 0)),
    )


def _drawn(
    space: Sequence[tuple[str, Magnitudes]], which: float, step: int, sign: float
) -> Operation:
    name, magnitudes = space[int(which * len(space))]
    magnitude = magnitudes.at(step)
    if name == "Posterize":
        magnitude = 8 - round(8 - magnitude)  # whole bits
    if magnitudes.signed and sign < 0.5:
        magnitude = -magnitude
    return Operation(name, magnitude)
