"""Encoded images to pixels: against Pillow and torchvision, and all that is not plain."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests_support import examples
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from kdlab.data.encoded.decode import Box, head, view
from kdlab.errors import DataError


def noise(height, width, seed=0):
    """Return an image of random squares: it has edges and surfaces, as photos have."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), np.uint8)
    return np.kron(coarse, np.ones((6, 6, 1), np.uint8))[:height, :width]


def encoded(pixels, kind="JPEG", **options):
    raw = io.BytesIO()
    Image.fromarray(pixels).save(raw, kind, **options)
    return raw.getvalue()


def full_view(raw, channels=3):
    known = head(raw)
    box = Box(0, 0, known.width, known.height)
    return view(raw, known, box, (known.height, known.width), channels)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
    st.integers(5, 98),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@pytest.mark.long
def test_a_jpeg_is_decoded_to_the_bytes_of_pillow(
    height, width, sampling, quality, progressive, seed
):
    raw = encoded(
        noise(height, width, seed),
        quality=quality,
        subsampling=sampling,
        progressive=progressive,
    )
    assert head(raw).quick
    with Image.open(io.BytesIO(raw)) as image:
        assert np.array_equal(full_view(raw), np.asarray(image))


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_a_part_is_resized_as_torchvision_does(data):
    height, width = data.draw(st.integers(8, 120)), data.draw(st.integers(8, 120))
    size = data.draw(st.integers(4, 64)), data.draw(st.integers(4, 64))
    box = Box(0, 0, data.draw(st.integers(1, width)), data.draw(st.integers(1, height)))
    box = box._replace(
        left=data.draw(st.integers(0, width - box.width)),
        top=data.draw(st.integers(0, height - box.height)),
    )
    raw = encoded(noise(height, width), data.draw(st.sampled_from(["JPEG", "PNG"])))
    with Image.open(io.BytesIO(raw)) as image:
        expected = reference.resized_crop(
            reference.pil_to_tensor(image.convert("RGB")),
            box.top, box.left, box.height, box.width, list(size),
            InterpolationMode.BILINEAR,
        ).permute(1, 2, 0).numpy().astype(np.int64)  # fmt: skip
    shown = view(raw, head(raw), box, size, 3).astype(np.int64)
    assert shown.shape == (*size, 3)
    at_half = min(box.width / size[1], box.height / size[0]) >= 2
    if raw[:2] == b"\xff\xd8" and at_half:  # decoded smaller: near, not the same
        assert abs(shown - expected).mean() < 25
    else:
        # Its sums are rounded in another order for planes than for pixels.
        assert abs(shown - expected).max() <= 1


@pytest.mark.parametrize("shrunk", [2, 4, 8])
def test_what_is_shown_small_is_decoded_small_and_looks_the_same(shrunk):
    smooth = np.linspace(0, 255, 512)[:, None] + np.linspace(0, 255, 512)[None]
    pixels = np.stack([smooth / 2, smooth[::-1] / 2, smooth / 2], -1).astype(np.uint8)
    raw = encoded(pixels, quality=95)
    box, side = Box(37, 61, 384, 256), 256 // shrunk
    shown = view(raw, head(raw), box, (side, side), 3).astype(np.int64)
    with Image.open(io.BytesIO(raw)) as image:
        expected = reference.resized_crop(image, 61, 37, 256, 384, [side, side])
    steps = 1.5 * shrunk  # a part begins and ends at whole pixels of the smaller image
    assert abs(shown - np.asarray(expected, np.int64)).max() <= 2 + steps


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_a_camera_says_of_its_orientation_is_carried_out(orientation):
    exif = Image.Exif()
    exif[274] = orientation
    raw = encoded(noise(40, 60), exif=exif)
    known = head(raw)
    turned = orientation > 4
    assert (known.height, known.width) == ((60, 40) if turned else (40, 60))
    assert known.quick == (orientation == 1)
    assert full_view(raw).shape == (known.height, known.width, 3)
    upright = full_view(encoded(noise(40, 60)))
    if orientation == 3:
        assert np.array_equal(full_view(raw), upright[::-1, ::-1])


def bytes_of(image, kind, **options):
    raw = io.BytesIO()
    image.save(raw, kind, **options)
    return raw.getvalue()


RED = np.full((12, 10, 3), (255, 0, 0), np.uint8)
DEEP = np.full((12, 10), 257 * 100, np.uint16)
UNUSUAL = {
    "cmyk": (bytes_of(Image.fromarray(RED).convert("CMYK"), "JPEG", quality=100), (255, 0, 0)),
    "grey jpeg": (encoded(RED[..., 0], quality=100), (255, 255, 255)),
    "palette": (bytes_of(Image.fromarray(RED).convert("P"), "PNG"), (255, 0, 0)),
    "transparent": (bytes_of(Image.fromarray(RED).convert("RGBA"), "PNG"), (255, 0, 0)),
    "one bit": (bytes_of(Image.new("1", (10, 12), 1), "PNG"), (255, 255, 255)),
    "16 bits": (bytes_of(Image.fromarray(DEEP), "PNG"), (100, 100, 100)),
    "animated": (
        bytes_of(
            Image.fromarray(RED), "GIF", save_all=True, append_images=[Image.new("RGB", (10, 12))]
        ),
        (255, 0, 0),
    ),
    "webp": (bytes_of(Image.fromarray(RED), "WEBP", lossless=True), (255, 0, 0)),
    "bmp": (bytes_of(Image.fromarray(RED), "BMP"), (255, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_not_plain_is_decoded_as_the_docs_say(name):
    raw, colour = UNUSUAL[name]
    shown = full_view(raw)
    assert shown.shape == (12, 10, 3)
    assert abs(shown.astype(int) - colour).max() <= 6
    assert full_view(raw, 1).shape == (12, 10, 1)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_the_bytes_say_what_an_image_is(form):
    assert full_view(encoded(noise(20, 30), form)).shape == (20, 30, 3)


def huge_png():
    raw = encoded(noise(16, 16), "PNG")
    chunk = b"IHDR" + struct.pack(">II", 60_000, 60_000) + raw[24:29]
    return raw[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + raw[33:]


def huge_jpeg():
    raw = bytearray(encoded(noise(16, 16)))
    at = raw.index(b"\xff\xc0")
    raw[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is not an image"),
        (b"hello, I am no image", "is not an image"),
        (encoded(noise(200, 200))[:3000], "cannot be decoded"),
        (encoded(noise(200, 200))[:20], "damaged JPEG"),
        (encoded(noise(200, 200), "PNG")[:900], "cannot be decoded"),
        (huge_png(), "a photo has at most|cannot be decoded: Image size"),
        (huge_jpeg(), "a photo has at most"),
    ],
    ids=["empty", "text", "cut jpeg", "cut head", "cut png", "huge png", "huge jpeg"],
)
def test_what_cannot_be_decoded_is_refused_in_plain_words(raw, words):
    with pytest.raises(DataError, match=words):
        full_view(raw)
