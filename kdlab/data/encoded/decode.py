"""Images to pixels, by the same rules everywhere: of sets, of files, in memory.

JPEG goes through libjpeg-turbo (simplejpeg: 1.7 times as many a second as Pillow, the same
bytes, which a test holds), all else through Pillow. A random part of a JPEG that is shown small
is decoded small: its transform can leave out what a half, a quarter or an eighth does not show.
What is shown in a test is decoded whole.

What is done with images that are not plain: 16 bits and floating-point numbers from 0 to 1 are
scaled to 8 bits; palettes, CMYK and grey become the asked channels; transparency is left out; of
an animation the first frame counts; what EXIF or XMP say of its orientation is carried out.

A few bytes may say that they are a billion pixels. So the pixels are counted before any is
decoded, and all threads of a process together decode only so many bytes at a time.
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
LARGEST = 120_000_000  # pixels: of the largest cameras; beyond it is no photo but an attack
_PER_BYTE = 50  # pixels: photos have up to 30 in a byte, drawings may have more
_TOGETHER = 200_000_000  # bytes that images with more of them take while they are decoded
_PHOTOS = max(_TOGETHER, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
_PIXEL = 8  # bytes that it takes meanwhile, copies included; of others by how they begin:
_PIXELS = {b"RI": 20, b"II": 12, b"MM": 12, b"\xff\xd8": 10}  # WebP, TIFF, JPEG
_PIXELS |= {b"\xff\x4f": 24, b"\0\0": 24}  # JPEG 2000, AVIF, HEIC
_STRIP = 1 << 20  # pixels that are converted at a time
_TILE = (322, 323)  # tags of a TIFF: pixels that are decoded at a time, however small it is
_ORIENTATION = 274  # tag of EXIF
_JPEG = b"\xff\xd8"
_PIXELS_FOLLOW, _NOTES = 0xDA, 0xE1  # markers of a JPEG: of its pixels; of EXIF and XMP
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


class _Room:
    """Memory that images may take while they are decoded, for all threads of a process."""

    def __init__(self) -> None:
        self._changed, self._taken = threading.Condition(), 0

    @contextmanager
    def of(self, raw: bytes, pixels: int) -> Iterator[None]:
        """Waits until there is room for so many pixels; one image always has some."""
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


_room = _Room()
os.register_at_fork(after_in_child=_room.__init__)  # type: ignore[misc]  # none of its threads


def _share(raw: bytes, pixels: int, packed: int) -> int:
    """Bytes that an image takes of `_TOGETHER`; a photo takes them of `_PHOTOS`.

    Raises:
        DataError: more pixels than a photo has, or than so few bytes can be one of.
    """
    cost = pixels * _PIXELS.get(raw[:2], _PIXEL)
    tight = pixels > _PER_BYTE * packed
    if pixels > LARGEST or (tight and cost > _TOGETHER):
        raise DataError(
            f"has {pixels:,} pixels in {packed:,} bytes, which would take {cost / 1e6:,.0f} MB "
            f"of memory; a photo has at most {LARGEST:,}, and {_PER_BYTE} in a byte. If it is "
            "meant, save it smaller"
        )
    if raw[4:12] in (b"ftypavif", b"ftypavis"):  # may have more than it says: one at a time
        return max(cost, _TOGETHER)
    return cost if tight else cost * _TOGETHER // _PHOTOS


@contextmanager
def _opened(raw: bytes) -> Iterator["Image.Image"]:
    """The image, nothing of it decoded.

    Raises:
        DataError: it is none, or damaged; also where what is done with it finds that.
    """
    unknown = PIL.UnidentifiedImageError  # an import that fails says nothing of the image
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
    """To be decoded at a time at least."""
    width, height = (int(getattr(image, "tag_v2", {}).get(tag, 0)) for tag in _TILE)
    return max(image.width * image.height, width * height)


def head(raw: bytes, packed: int | None = None) -> Head:
    """Size of an image, upright.

    Args:
        raw: its bytes, or the first of them.
        packed: how many they are in all.

    Raises:
        DataError: it is none, or larger than any photo.
    """
    packed = packed or len(raw)
    if raw[:2] == _JPEG and not _has_notes(raw):
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(raw, strict=False)
        except (ValueError, KeyError) as error:  # the second: colours of no kind it knows
            raise DataError(f"is a damaged JPEG: {error}") from error
        _share(raw, height * width, packed)
        return Head(height, width, colours in _PLAIN)
    with _opened(raw) as image:
        _share(raw, _pixels(image), packed)
        width, height = image.size
        orientation = image.getexif().get(_ORIENTATION, 1)
        quick = raw[:2] == _JPEG and image.mode in ("RGB", "L") and orientation == 1
        turned = orientation in (5, 6, 7, 8) and image.format != "TIFF"  # says it upright
    return Head(width, height, quick) if turned else Head(height, width, quick)


def _has_notes(raw: bytes) -> bool:
    """Whether a JPEG has EXIF or XMP, which may say how it is turned, wherever it stands.

    Raises:
        DataError: these bytes end before its pixels begin.
    """
    at = 2
    while at + 4 <= len(raw):
        marker = raw[at + 1]
        if raw[at] != 0xFF or marker == _NOTES:
            return True  # or something else that Pillow has to look at
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
        DataError: it is damaged, or larger than any photo.
    """
    height, width = size
    shrunk = 1
    while shrunk < _SMALLEST and min(box.width / width, box.height / height) >= 2 * shrunk:
        shrunk *= 2
    with _room.of(raw, known.height * known.width):
        whole, shrunk = _whole(raw, known, shrunk)
        right, bottom = box.left + box.width, box.top + box.height
        rows = slice(box.top // shrunk, -(-bottom // shrunk))
        part = whole[rows, box.left // shrunk : -(-right // shrunk)]
        return resized(in_channels(part, channels), size, interpolation)


def decoded(raw: bytes, known: Head, show: Callable[[Pixels], Pixels]) -> Pixels:
    """What `show` makes of all of an image, (H, W, 3) upright, while there is room for it.

    Raises:
        DataError: it is damaged, or larger than any photo.
    """
    with _room.of(raw, known.height * known.width):
        return show(_whole(raw, known)[0])


def resized(
    pixels: Pixels, size: tuple[int, int], interpolation: Interpolation = "bilinear"
) -> Pixels:
    """(height, width, C); see `resized_planes`.

    What torch is given lies in one piece: else it copies that with as many threads as the student
    trains with, once for each image.
    """
    planes = np.require(pixels, None, ("C", "W")).transpose(2, 0, 1)
    return resized_planes(planes, size, interpolation).transpose(1, 2, 0)


def resized_planes(
    planes: Pixels, size: tuple[int, int], interpolation: Interpolation = "bilinear"
) -> Pixels:
    """(C, height, width), antialiased; a quarter of the time that Pillow needs.

    torch makes the same bytes on every processor, however the planes lie in memory.
    """
    import torch

    if planes.shape[1:] == size:
        return planes
    whole = torch.from_numpy(planes)[None]
    small = torch.nn.functional.interpolate(whole, size, mode=interpolation, antialias=True)
    return small[0].numpy()


def decodes(raw: bytes) -> bool:
    """Whether all of an image is there."""
    try:
        with _opened(raw) as image, _room.of(raw, _pixels(image)):
            image.load()
    except DataError:
        return False
    return True


def in_channels(pixels: Pixels, channels: int) -> Pixels:
    """(H, W, channels) of colours."""
    if channels > 1:
        return pixels
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[..., None]


def _whole(raw: bytes, known: Head, shrunk: int = 1) -> tuple[Pixels, int]:
    """(H, W, 3) upright, and how many times smaller it was decoded: only a plain JPEG is."""
    whole = _by_turbo(raw, known, shrunk) if known.quick else None
    return (_by_pillow(raw), 1) if whole is None else (whole, shrunk)


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
    with _opened(raw) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return _colours(image)


def of_picture(image: "Image.Image") -> Pixels:
    """(H, W, 3) of one of Pillow's, upright, by the same rules.

    Raises:
        DataError: it is damaged, or larger than any photo.
    """
    _share(b"", image.width * image.height, image.width * image.height)
    try:
        return _colours(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError, ArithmeticError) as error:  # is read now
        raise DataError(f"cannot be decoded: {error}") from error


def _colours(image: "Image.Image") -> Pixels:
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for rows, strip in _strips(image):
        pixels[rows] = np.asarray(eight_bits(strip).convert("RGB"))
    return pixels


def _strips(image: "Image.Image") -> Iterator[tuple[slice, "Image.Image"]]:
    """Some rows at a time, and which they are: a conversion copies what it is given."""
    step = max(1, _STRIP // image.width)
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        yield slice(top, bottom), image.crop((0, top, image.width, bottom))


def eight_bits(image: "Image.Image") -> "Image.Image":
    """Values from 0 to 255; Pillow's own conversion cuts off what is larger.

    Raises:
        DataError: numbers of a kind that no rule covers.
    """
    if image.mode not in ("I;16", "I;16B", "I;16L", "I;16N", "I", "F"):
        return image
    return Image.fromarray(scaled(np.asarray(image)))


def scaled(values: NDArray[Any]) -> Pixels:
    """Floating-point numbers from 0 to 1, or whole ones of 16 bits, to 8 bits.

    Raises:
        DataError: they are others.
    """
    low, high = float(values.min()), float(values.max())
    whole = values.dtype.kind in "iu"
    most = 2**16 - 1 if whole else 1
    if not 0 <= low <= high <= most:  # nan is neither
        kind = "whole-number" if whole else "floating-point"
        those = "those of 16 bits are taken as" if whole else "from 0 to 1 are taken as"
        raise DataError(
            f"has {kind} pixels from {low:g} to {high:g}; {those} black (0) to white ({most}), "
            "others have to be converted to 8 bits first"
        )
    return np.rint(values * np.float64(255 / most)).astype(np.uint8)
