"""Decode images to pixels, by the same rules for data sets, files and images in memory.

JPEG goes through libjpeg-turbo (simplejpeg: 1.7 times as many a second as Pillow, the same
bytes, which a test holds), all else through Pillow. A random crop of a JPEG that is shown small
is decoded at a half, a quarter or an eighth of its size, which the DCT allows. Images without
augmentation are decoded at full size.

Other kinds of images: 16 bits and floating-point numbers from 0 to 1 are scaled to 8 bits;
palettes, CMYK and grey become the requested channels; transparency is left out; of an animation
the first frame is used; the orientation in EXIF or XMP is applied.

A few bytes may declare a billion pixels. So the pixels are counted before any is decoded, and the
threads of a process together decode a bounded number of bytes at a time.
"""

import io
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from kdlab.data.encoded.formats import decoders
from kdlab.errors import DataError
from kdlab.lazy import lazy

if TYPE_CHECKING:
    import PIL
    from PIL import Image, ImageOps
else:
    PIL, Image, ImageOps = map(lazy, ("PIL", "PIL.Image", "PIL.ImageOps"))

Pixels = NDArray[np.uint8]  # (H, W, C)
Interpolation = Literal["bilinear", "bicubic"]
LARGEST = 120_000_000  # pixels of the largest cameras; more is taken for an attack
_PER_BYTE = 50  # pixels in a byte: photos have up to 30, drawings may have more
_TOGETHER = 200_000_000  # bytes that images above `_PER_BYTE` may take during decoding
_PHOTOS = max(_TOGETHER, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
_PIXEL = 8  # bytes a pixel takes meanwhile, copies included; others by their first bytes:
_PIXELS = {b"RI": 20, b"II": 12, b"MM": 12, b"\xff\xd8": 10}  # WebP, TIFF, JPEG
_PIXELS |= {b"\xff\x4f": 24, b"\0\0": 24}  # JPEG 2000, AVIF, HEIC
_STRIP = 1 << 20  # pixels that are converted at a time
_TILE = (322, 323)  # tags of a TIFF: size of a tile, which is decoded at once
_ORIENTATION = 274  # tag of EXIF
_JPEG = b"\xff\xd8"
_PIXELS_FOLLOW, _METADATA = 0xDA, 0xE1  # markers of a JPEG: pixels; EXIF and XMP
_SMALLEST = 8  # a JPEG can be decoded at an eighth of its size
_PLAIN = ("YCbCr", "RGB", "Gray")


class Head(NamedTuple):
    """Size and kind of an image, read before its pixels are decoded."""

    height: int  # upright
    width: int
    quick: bool  # a plain JPEG


class Box(NamedTuple):
    """A part of an image, in pixels of its full size."""

    left: int
    top: int
    width: int
    height: int


class _MemoryLimit:
    """Bounds the memory that decoding takes, over all threads of a process."""

    def __init__(self) -> None:
        self._changed, self._taken = threading.Condition(), 0

    @contextmanager
    def reserve(self, raw: bytes, pixels: int) -> Iterator[None]:
        """Hold memory for decoding an image; wait for it unless no other image has any."""
        share = _share(raw, pixels, len(raw))
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + share <= _TOGETHER
            )
            self._taken += share
        try:
            yield
        finally:
            with self._changed:
                self._taken -= share
                self._changed.notify_all()


_memory = _MemoryLimit()
os.register_at_fork(after_in_child=_memory.__init__)  # type: ignore[misc]  # none of its threads


def _share(raw: bytes, pixels: int, packed: int) -> int:
    """Bytes of `_TOGETHER` that decoding an image takes; photos are scaled to `_PHOTOS`.

    Raises:
        DataError: it has more pixels than a photo, or too many for its bytes.
    """
    cost = pixels * _PIXELS.get(raw[:2], _PIXEL)
    tight = pixels > _PER_BYTE * packed
    if pixels > LARGEST or (tight and cost > _TOGETHER):
        raise DataError(
            f"has {pixels:,} pixels in {packed:,} bytes, which would take {cost / 1e6:,.0f} MB "
            f"of memory; a photo has at most {LARGEST:,}, and {_PER_BYTE} in a byte. If this is "
            "intended, save it smaller"
        )
    if raw[4:12] in (b"ftypavif", b"ftypavis"):  # may declare too few: one at a time
        return max(cost, _TOGETHER)
    return cost if tight else cost * _TOGETHER // _PHOTOS


@contextmanager
def _opened(raw: bytes) -> Iterator["Image.Image"]:
    """Open an image without decoding it.

    Raises:
        DataError: it is no image, or damaged; also where the body of the `with` finds that.
    """
    unknown = PIL.UnidentifiedImageError  # a failing import is no fault of the image
    try:
        with Image.open(io.BytesIO(raw), formats=decoders()) as image:
            yield image
    except DataError:
        raise
    except unknown:
        raise DataError(f"is not an image ({', '.join(decoders())})") from None
    except Exception as error:  # Pillow raises a dozen kinds for damaged files
        raise DataError(f"cannot be decoded: {error}") from error


def _pixels(image: "Image.Image") -> int:
    """Pixels that are decoded at once: those of the image or of a TIFF's tile."""
    width, height = (int(getattr(image, "tag_v2", {}).get(tag, 0)) for tag in _TILE)
    return max(image.width * image.height, width * height)


def head(raw: bytes, packed: int | None = None) -> Head:
    """Size of an image after its orientation is applied.

    Args:
        raw: its bytes, or the first of them.
        packed: number of all its bytes.

    Raises:
        DataError: it is no image, or larger than any photo.
    """
    packed = packed or len(raw)
    if raw[:2] == _JPEG and not _has_metadata(raw):
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(raw, strict=False)
        except (ValueError, KeyError) as error:  # KeyError: an unknown colour space
            raise DataError(f"is a damaged JPEG: {error}") from error
        _share(raw, height * width, packed)
        return Head(height, width, colours in _PLAIN)
    with _opened(raw) as image:
        _share(raw, _pixels(image), packed)
        width, height = image.size
        orientation = image.getexif().get(_ORIENTATION, 1)
        quick = raw[:2] == _JPEG and image.mode in ("RGB", "L") and orientation == 1
        turned = orientation in (5, 6, 7, 8) and image.format != "TIFF"  # upright already
    return Head(width, height, quick) if turned else Head(height, width, quick)


def _has_metadata(raw: bytes) -> bool:
    """Return whether a JPEG has EXIF or XMP, which may set its orientation.

    Raises:
        DataError: the bytes end before the pixels begin.
    """
    at = 2
    while at + 4 <= len(raw):
        marker = raw[at + 1]
        if raw[at] != 0xFF or marker == _METADATA:
            return True  # or another case for Pillow
        if marker == _PIXELS_FOLLOW:
            return False
        at += 1 if marker == 0xFF else 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    raise DataError("is a damaged JPEG: it ends before its pixels begin")


def view(
    raw: bytes,
    known: Head,
    box: Box,
    size: tuple[int, int],
    channels: int,
    interpolation: Interpolation = "bilinear",
) -> Pixels:
    """(H, W, C): a part of an image, resized with antialiasing.

    Equals torchvision's `resized_crop` of the image as a tensor, unless it is a JPEG and the part
    at least twice as large as the view: it is then decoded at a half, a quarter or an eighth of its
    size, and the part is rounded outward to whole pixels of that.

    Args:
        raw: encoded bytes.
        known: their `head`.
        box: the part.
        size: (height, width) of the view.
        channels: 3 or 1.
        interpolation: of the resizing.

    Raises:
        DataError: it is damaged, or larger than any photo.
    """
    height, width = size
    shrink = 1
    while shrink < _SMALLEST and min(box.width / width, box.height / height) >= 2 * shrink:
        shrink *= 2
    with _memory.reserve(raw, known.height * known.width):
        pixels, shrink = _decode(raw, known, shrink)
        right, bottom = box.left + box.width, box.top + box.height
        rows = slice(box.top // shrink, -(-bottom // shrink))
        part = pixels[rows, box.left // shrink : -(-right // shrink)]
        return resized(in_channels(part, channels), size, interpolation)


def decoded(raw: bytes, known: Head, show: Callable[[Pixels], Pixels]) -> Pixels:
    """Decode an image to (H, W, 3), upright, and return `show` of it, within the memory limit.

    Raises:
        DataError: it is damaged, or larger than any photo.
    """
    with _memory.reserve(raw, known.height * known.width):
        return show(_decode(raw, known)[0])


def resized(
    pixels: Pixels, size: tuple[int, int], interpolation: Interpolation = "bilinear"
) -> Pixels:
    """(height, width, C); see `resized_planes`.

    torch is given contiguous memory: else it copies each image with as many threads as the student
    trains with.
    """
    planes = np.require(pixels, None, ("C", "W")).transpose(2, 0, 1)
    return resized_planes(planes, size, interpolation).transpose(1, 2, 0)


def resized_planes(
    planes: Pixels, size: tuple[int, int], interpolation: Interpolation = "bilinear"
) -> Pixels:
    """(C, height, width), antialiased, in a quarter of Pillow's time.

    torch makes the same bytes on every processor and for every memory layout.
    """
    import torch

    if planes.shape[1:] == size:
        return planes
    image = torch.from_numpy(planes)[None]
    small = torch.nn.functional.interpolate(image, size, mode=interpolation, antialias=True)
    return small[0].numpy()


def decodes(raw: bytes) -> bool:
    """Return whether a whole image can be decoded."""
    try:
        with _opened(raw) as image, _memory.reserve(raw, _pixels(image)):
            image.load()
    except DataError:
        return False
    return True


def in_channels(pixels: Pixels, channels: int) -> Pixels:
    """(H, W, channels) of (H, W, 3): RGB, or grey by Pillow's rule."""
    if channels > 1:
        return pixels
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[..., None]


def _decode(raw: bytes, known: Head, shrink: int = 1) -> tuple[Pixels, int]:
    """(H, W, 3) upright, and the divisor of its size: above 1 only for a plain JPEG."""
    pixels = _by_turbo(raw, known, shrink) if known.quick else None
    return (_by_pillow(raw), 1) if pixels is None else (pixels, shrink)


def _by_turbo(raw: bytes, known: Head, shrink: int) -> Pixels | None:
    """(ceil(H / shrunk), ceil(W / shrunk), 3); None where Pillow must decode it."""
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            raw,
            min_height=math.ceil(known.height / shrink),
            min_width=math.ceil(known.width / shrink),
            min_factor=1,
        )
    except ValueError:  # cut off, or with extra data that Pillow ignores
        return None
    return pixels


def _by_pillow(raw: bytes) -> Pixels:
    """(H, W, 3), upright."""
    with _opened(raw) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return _colours(image)


def from_pillow(image: "Image.Image") -> Pixels:
    """(H, W, 3) of a Pillow image, upright, by the same rules.

    Raises:
        DataError: it is damaged, or larger than any photo.
    """
    _share(b"", image.width * image.height, image.width * image.height)
    try:
        return _colours(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError, ArithmeticError) as error:  # it is read here
        raise DataError(f"cannot be decoded: {error}") from error


def _colours(image: "Image.Image") -> Pixels:
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for rows, strip in _strips(image):
        pixels[rows] = np.asarray(eight_bits(strip).convert("RGB"))
    return pixels


def _strips(image: "Image.Image") -> Iterator[tuple[slice, "Image.Image"]]:
    """Rows of an image, some at a time, and their slice: a conversion copies its input."""
    step = max(1, _STRIP // image.width)
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def eight_bits(image: "Image.Image") -> "Image.Image":
    """Scale values to 0 to 255; Pillow's conversion clips larger ones.

    Raises:
        DataError: the values are outside the supported ranges.
    """
    if image.mode not in ("I;16", "I;16B", "I;16L", "I;16N", "I", "F"):
        return image
    return Image.fromarray(scaled(np.asarray(image)))


def scaled(values: NDArray[Any]) -> Pixels:
    """Scale floating-point numbers from 0 to 1, or 16-bit integers, to 8 bits.

    Raises:
        DataError: values are outside these ranges.
    """
    low, high = float(values.min()), float(values.max())
    integer = values.dtype.kind in "iu"
    most = 2**16 - 1 if integer else 1
    if not 0 <= low <= high <= most:  # nan is neither
        kind = "whole-number" if integer else "floating-point"
        rule = "those of 16 bits are taken as" if integer else "from 0 to 1 are taken as"
        raise DataError(
            f"has {kind} pixels from {low:g} to {high:g}; {rule} black (0) to white ({most}), "
            "others have to be converted to 8 bits first"
        )
    return np.rint(values * np.float64(255 / most)).astype(np.uint8)
