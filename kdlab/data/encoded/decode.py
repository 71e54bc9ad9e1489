"""Encoded images to pixels, by the same rules everywhere.

JPEG goes through libjpeg-turbo (simplejpeg: 1.7 times as many a second as Pillow, the same
bytes, which a test holds), all else through Pillow. An image that is only shown small is decoded
small: the transform of a JPEG can leave out what a half, a quarter or an eighth does not show.

What is done with images that are not plain: 16 bits and floating-point numbers from 0 to 1 are
scaled to 8 bits; palettes, CMYK and grey become the asked channels; transparency is left out; of
an animation the first frame counts; what a camera says of its orientation is carried out.
"""

import io
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from kdlab.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]  # (H, W, C)
Interpolation = Literal["bilinear", "bicubic"]
LARGEST = (
    178_956_970  # pixels: as Pillow's own limit, beyond which it is no photo but an attack
)
_ORIENTATION = 274  # tag of EXIF
_JPEG = b"\xff\xd8"
_EXIF_WITHIN = 1 << 16  # bytes: it stands among the first segments of a file
_SMALLEST = 8  # what a JPEG can be decoded to: an eighth
_PLAIN = ("YCbCr", "RGB", "Gray")


class Head(NamedTuple):
    """What is known of an image before its pixels are decoded."""

    height: int  # upright
    width: int
    quick: bool  # a plain JPEG


class Box(NamedTuple):
    """A part of an image, in pixels of its full size."""

    left: int
    top: int
    width: int
    height: int


def head(raw: bytes) -> Head:
    """Size of an image, upright.

    Raises:
        DataError: it is none, or larger than any photo.
    """
    from PIL import Image, UnidentifiedImageError

    if raw[:2] == _JPEG and raw.find(b"Exif", 0, _EXIF_WITHIN) < 0:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(raw, strict=False)
        except (
            ValueError,
            KeyError,
        ) as error:  # KeyError: colours of no kind that it knows
            raise DataError(f"is a damaged JPEG: {error}") from error
        _refuse_if_huge(height, width)
        return Head(height, width, colours in _PLAIN)
    try:
        with Image.open(io.BytesIO(raw)) as image:
            width, height = image.size
            orientation = image.getexif().get(_ORIENTATION, 1)
            quick = raw[:2] == _JPEG and image.mode in ("RGB", "L") and orientation == 1
    except UnidentifiedImageError:
        raise DataError("is not an image") from None
    except Exception as error:  # Pillow raises a dozen kinds for damaged files
        raise DataError(f"cannot be decoded: {error}") from error
    _refuse_if_huge(height, width)
    if orientation in (5, 6, 7, 8):  # a quarter turn
        height, width = width, height
    return Head(height, width, quick)


def _refuse_if_huge(height: int, width: int) -> None:
    if height * width > LARGEST:
        raise DataError(f"has {width:,} by {height:,} pixels, which no photo has")


def view(
    raw: bytes,
    known: Head,
    box: Box,
    size: tuple[int, int],
    channels: int,
    interpolation: Interpolation = "bilinear",
) -> Pixels:
    """(H, W, C): a part of an image, brought to a size by antialiased resizing.

    The same as torchvision's `resized_crop` of the image as a tensor, unless the part is at least
    twice as large as asked for in a JPEG: that is decoded to a half, a quarter or an eighth first,
    and the part has the pixels of that in which it lies.

    Args:
        raw: encoded bytes.
        known: their `head`.
        box: the part.
        size: (height, width) of the view.
        channels: 3 or 1.
        interpolation: of the resizing.

    Raises:
        DataError: it is damaged.
    """
    height, width = size
    shrunk = 1
    while shrunk < _SMALLEST and min(box.width / width, box.height / height) >= 2 * shrunk:
        shrunk *= 2
    whole = _by_turbo(raw, known, shrunk) if known.quick else None
    if whole is None:
        whole, shrunk = _by_pillow(raw), 1
    right, bottom = box.left + box.width, box.top + box.height
    rows = slice(box.top // shrunk, -(-bottom // shrunk))
    part = whole[rows, box.left // shrunk : -(-right // shrunk)]
    if part.shape[:2] != size:
        part = resized(part, size, interpolation)
    return part if channels > 1 else _grey(part)


def resized(
    pixels: Pixels, size: tuple[int, int], interpolation: Interpolation = "bilinear"
) -> Pixels:
    """(height, width, 3), antialiased; a quarter of the time that Pillow needs.

    torch makes the same bytes on every processor. What it is given lies in one piece: else it
    copies that with as many threads as the student trains with, once for each image.
    """
    import torch

    whole = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
    small = torch.nn.functional.interpolate(whole, size, mode=interpolation, antialias=True)
    return small[0].permute(1, 2, 0).numpy()


def square(raw: bytes, size: int, channels: int) -> Pixels:
    """(C, size, size): the square in the middle, by Pillow, as sets are decoded once."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(raw)) as image:
        upright = ImageOps.exif_transpose(eight_bits(image))
        plain = upright.convert("RGB" if channels == 3 else "L")
    if plain.size != (size, size):  # shorter side to `size`, centre crop
        plain = ImageOps.fit(plain, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]


def decodes(raw: bytes) -> bool:
    """Whether all of an image is there."""
    try:
        _by_pillow(raw)
    except DataError:
        return False
    return True


def _grey(pixels: Pixels) -> Pixels:
    from PIL import Image

    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[..., None]


def _by_turbo(raw: bytes, known: Head, shrunk: int) -> Pixels | None:
    """(ceil(H / shrunk), ceil(W / shrunk), 3); None where Pillow has to look at it."""
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            raw,
            min_height=math.ceil(known.height / shrunk),
            min_width=math.ceil(known.width / shrunk),
            min_factor=1,
        )
    except ValueError:  # cut off, or with something beside the pixels that Pillow overlooks
        return None
    return pixels


def _by_pillow(raw: bytes) -> Pixels:
    """(H, W, 3), upright."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(raw)) as image:
            upright = ImageOps.exif_transpose(eight_bits(image))
            return np.array(upright.convert("RGB"))  # its own, as torch wants it
    except DataError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for damaged files
        raise DataError(f"cannot be decoded: {error}") from error


def eight_bits(image: "Image.Image") -> "Image.Image":
    """Values from 0 to 255; Pillow's own conversion cuts off what is larger.

    Raises:
        DataError: numbers of a kind that no rule covers.
    """
    from PIL import Image

    if image.mode not in ("I;16", "I;16B", "I;16L", "I;16N", "I", "F"):
        return image
    values = np.asarray(image).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    if image.mode == "F":
        if not (np.isfinite(values).all() and 0 <= low <= high <= 1):
            raise DataError(
                f"has floating-point pixels from {low:g} to {high:g}; from 0 to 1 are taken as "
                "black to white, others have to be converted to 8 bits first"
            )
        values = values * 255
    else:
        if not 0 <= low <= high < 2**16:
            raise DataError(
                f"has whole-number pixels from {low:g} to {high:g}; those of 16 bits are taken as "
                "black (0) to white (65535), others have to be converted to 8 bits first"
            )
        values = values / 257
    return Image.fromarray(np.rint(values).astype(np.uint8))
