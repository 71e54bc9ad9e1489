"""Sixty photos of odd kinds, all of which show the same picture upright."""

import functools
import io
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

TURN = {  # what was done to a picture whose orientation says how that is undone
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
_XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


def picture(width=60, height=40):
    """Smooth, and unlike in all four corners."""
    x, y = np.linspace(0, 255, width)[None], np.linspace(0, 255, height)[:, None]
    planes = np.broadcast_arrays(x, y, (255 - x) * y / 255)
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def saved(image, kind, **options):
    raw = io.BytesIO()
    image.save(raw, kind, **options)
    return raw.getvalue()


def _exif(orientation):
    exif = Image.Exif()
    exif[274] = orientation
    return exif


def _segment(marker, data):
    return b"\xff" + bytes([marker]) + struct.pack(">H", 2 + len(data)) + data


def _behind(raw, *segments):
    """A JPEG with segments behind its first two bytes."""
    return raw[:2] + b"".join(segments) + raw[2:]


def _exif_at_the_end(raw):
    """A PNG whose eXIf stands behind its pixels."""
    at = raw.index(b"eXIf") - 4
    (size,) = struct.unpack(">I", raw[at : at + 4])
    chunk, rest = raw[at : at + 12 + size], raw[:at] + raw[at + 12 + size :]
    return rest[:-12] + chunk + rest[-12:]


def _deep_png(values, colours=False):
    """16 bits a channel, which Pillow writes of grey alone."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, 2 if colours else 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
        for k, d in parts
    )


def _turned(image):
    """EXIF 1 to 8 in five kinds of file, and where it is seldom looked for."""
    for orientation in range(1, 9):
        turn = TURN.get(orientation)
        stored = image if turn is None else image.transpose(turn)
        exif, name = _exif(orientation), f"exif {orientation}"
        yield f"{name}.jpg", saved(stored, "JPEG", quality=95, exif=exif)
        yield f"{name}.png", saved(stored, "PNG", exif=exif)
        yield f"{name}.webp", saved(stored, "WEBP", lossless=True, exif=exif)
        packing = "tiff_lzw" if orientation % 2 else None
        tags = {274: orientation}
        yield f"{name}.tif", saved(stored, "TIFF", tiffinfo=tags, compression=packing)
        avif = saved(stored, "AVIF", quality=95, subsampling="4:4:4", speed=10, exif=exif)
        yield f"{name} avif.png", avif  # its bytes say what it is
    stored = image.transpose(TURN[6])
    plain, tagged = saved(stored, "JPEG", quality=95), saved(stored, "PNG", exif=_exif(6))
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + _XMP.format(6).encode()
    comment, exif = _segment(0xFE, bytes(60_000)), b"Exif\0\0" + _exif(6).tobytes()[6:]
    yield "xmp.jpg", _behind(plain, _segment(0xE1, xmp))
    yield "xmp far behind.jpg", _behind(plain, comment, comment, _segment(0xE1, xmp))
    yield "exif far behind.jpg", _behind(plain, comment, comment, _segment(0xE1, exif))
    yield "exif behind its pixels.png", _exif_at_the_end(tagged)
    yield "xmp.webp", saved(stored, "WEBP", lossless=True, xmp=_XMP.format(6).encode())
    yield "xmp.tif", saved(image, "TIFF", tiffinfo={700: _XMP.format(1).encode()})


def _modes(image):
    """Sorts of pixels, of which grey ones show the same in grey."""
    pixels, clear = np.asarray(image), image.copy()
    clear.putalpha(90)
    grey = np.asarray(image.convert("L"))
    yield "16 bits.png", _deep_png(grey.astype(np.uint16) * 257)
    yield "16 bits in colour.png", _deep_png(pixels.astype(np.uint16) * 257, colours=True)
    yield "16 bits.tif", saved(Image.fromarray(grey.astype(np.uint16) * 257), "TIFF")
    yield "float.tif", saved(Image.fromarray((grey / 255).astype(np.float32)), "TIFF")
    yield "cmyk.jpg", saved(image.convert("CMYK"), "JPEG", quality=95)
    yield "cmyk.tif", saved(image.convert("CMYK"), "TIFF")
    yield "grey.jpg", saved(image.convert("L"), "JPEG", quality=95)
    yield "palette.png", saved(image.quantize(256), "PNG")
    yield (
        "palette with a clear colour.png",
        saved(image.quantize(256), "PNG", transparency=3),
    )
    yield "alpha.png", saved(clear, "PNG")
    yield "alpha.webp", saved(clear, "WEBP", lossless=True, exact=True)
    yield "grey with alpha.png", saved(clear.convert("LA"), "PNG")
    others = {"save_all": True, "append_images": [ImageOps.invert(image)]}
    yield "animated.gif", saved(image, "GIF", **others)
    yield "animated.webp", saved(image, "WEBP", lossless=True, **others)


@functools.cache
def odd_photos(width=60, height=40):
    """Name -> bytes of a file; `expected` says what it shows."""
    image = picture(width, height)
    return dict([*_turned(image), *_modes(image)])


def expected(name, width=60, height=40):
    """(height, width, 3) that the photo shows, and how far a file may be from it."""
    image = picture(width, height)
    grey = name.startswith(("16 bits.", "float", "grey"))
    exact = name.endswith((".png", ".tif", ".webp")) and "palette" not in name
    exact &= "avif" not in name and "cmyk" not in name
    pixels = np.asarray((image.convert("L") if grey else image).convert("RGB"), np.int64)
    return pixels, 1 if exact else 40
