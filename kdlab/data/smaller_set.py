"""A set of photos written once more at the size that its views need.

What a view costs is the bytes and the pixels of its original. Images are decoded once, brought to
the size from which views lose nothing, and written into one zip with a table, which
`data/image_list` reads as any other. The folder has its name once it is whole and was read again.
"""

import csv
import io
import math
import os
import shutil
import time
import zipfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from PIL import Image

from kdlab.codec import to_builtins
from kdlab.config.home import home, locked
from kdlab.config.kept import key_of
from kdlab.config.seal import seal
from kdlab.data.encoded.decode import Pixels, decoded, head, resized
from kdlab.data.encoded.formats import readable, suffix_of
from kdlab.data.encoded.index import NO_SPLIT
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.encoded.store import Store
from kdlab.data.encoded.view_threads import in_threads
from kdlab.data.image_files import ImageFiles
from kdlab.data.image_list import ARCHIVE, LONGEST, TABLE, ImageList, Reencoded
from kdlab.data.images import Notify
from kdlab.data.splits import NAMES
from kdlab.errors import BadInput, DataError

_MOST = 2.0  # of `side_for`
_AT_ONCE = 256  # images in memory
_COMPARED = 200  # images whose PSNR is taken
_SAY_S = 5.0
_SUFFIX = {"JPEG": ".jpg", "WEBP": ".webp", "PNG": ".png"}
_FORMULA = tuple("=+-@\t\r")  # a cell that begins with one is computed by a spreadsheet


class _Encoded(NamedTuple):
    """An image in the new archive."""

    raw: bytes
    suffix: str
    psnr_db: float = math.inf  # where nothing was lost
    as_png: bool = False  # it is too long for the form that was asked for


def side_for(spec: ImageFiles, factor: float | None = None) -> int:
    """Pixels of a shorter side from which views of this set lose nothing.

    `factor` times those of a view; else 1 / crop_pct, and with random crops 1 / sqrt(resized_crop),
    2 at most: the smallest square crop (at 2: a quarter of the area) has a pixel for each.
    """
    smallest = spec.augment.resized_crop
    cropped = 1.0 if smallest is None else min(_MOST, smallest**-0.5)
    factor = factor or max(1 / (spec.crop_pct or 1.0), cropped)
    return math.ceil(spec.size * factor - 1e-6)


def write_smaller(
    spec: ImageFiles,
    folder: Path,
    quality: int | None = 85,
    factor: float | None = None,
    say: Notify = lambda line: None,
) -> Reencoded:
    """Write a set into a new folder, which appears once it is whole.

    Args:
        spec: its images; its size, crops and `broken` count.
        folder: that does not exist yet.
        quality: of JPEG (4:2:0), 1 to 100; None is WebP without loss.
        factor: of `side_for`, 1 to 16.
        say: gets a line every few seconds.

    Raises:
        BadInput: a setting is out of its range, the folder exists or cannot be written to.
        DataError: an image cannot be read or decoded, or a table cannot say the labels.
    """
    if not (quality in (None, *range(1, 101)) and (factor is None or 1 <= factor <= 16)):
        raise BadInput("A store has a quality of 1 to 100 and a factor of 1 to 16.")
    folder = folder.expanduser().absolute()
    half = folder.with_name(f".{folder.name}.partial")  # of one that was killed, too
    with locked(home() / "data" / f"{key_of(str(folder))}.lock"):
        if folder.exists():
            raise BadInput(f"{folder} exists. Name a new folder, or remove it first.")
        try:
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            store, side = spec.store(say, verify=True), side_for(spec, factor)
            spec.refuse_broken(store.index.facts.broken, store, say)
            one = partial(_one, store, side, quality, spec.broken == "skip")
            after, psnr_db, larger, as_png = _fill(half, store, one, say)
            form, index = (
                "WebP lossless" if quality is None else f"JPEG {quality}",
                store.index,
            )
            made = (
                index.facts.digest,
                index.facts.classes,
                len(store),
                spec.size,
                side,
                form,
            )
            before = int(index.size.sum())
            facts = Reencoded(*made, before, after, psnr_db, larger, as_png)
            seal(half, (ARCHIVE, TABLE), to_builtins(facts))
            found, table = Inventory(), str(half / TABLE)
            ImageList(root=table).find(table, found)
            images = sorted(found.images, key=lambda image: image.name)
            if [(image.label, image.split) for image in images] != _meant(store):
                raise DataError("A table cannot say the names of these classes.")
            os.rename(half, folder)
        except OSError as error:
            raise BadInput(f"{folder} cannot be written: {error}.") from error
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return facts


def _fill(
    folder: Path, store: Store, one: "partial[_Encoded]", say: Notify
) -> tuple[int, float | None, int, int]:
    """Write archive and table, some images at a time.

    Returns:
        Bytes of all images, the median PSNR in dB (None: nothing was lost), how many images have
        more bytes than before, and how many are PNG because they are too long.
    """
    after, larger, as_png, told = 0, 0, 0, time.monotonic()
    apart, made = list[float](), dict[int, _Encoded]()
    with (
        zipfile.ZipFile(folder / ARCHIVE, "w") as archive,
        open(folder / TABLE, "w", encoding="utf-8", errors="replace", newline="") as file,
    ):
        table, meant = csv.writer(file), _meant(store)
        table.writerow(("path", "label", "split", "original"))
        for first in range(0, len(store), _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, len(store)))
            store.expect(rows)
            in_threads(partial(_some, made, one, first), len(rows))
            for row in rows.tolist():
                raw, suffix, psnr, too_long = made.pop(row)
                label, split = meant[row]
                name, part = f"{row:09}{suffix}", "" if split is None else NAMES[split]
                archive.writestr(name, raw)
                table.writerow((name, label or "", part, _cell(store.index.name(row))))
                after += len(raw)
                larger += len(raw) > int(store.index.size[row])
                as_png += too_long
                apart += [psnr] if psnr < math.inf else []
            if time.monotonic() - told > _SAY_S:
                told, ready = time.monotonic(), first + len(rows)
                say(f"encoded {ready:,} of {len(store):,} images, {after / 1e6:,.0f} MB")
    return after, median(apart) if apart else None, larger, as_png


def _cell(path: str) -> str:
    """The same path, in which no spreadsheet sees a formula. Labels stay: they are read again."""
    return f"./{path}" if path.startswith(_FORMULA) else path


def _encode(pixels: Pixels, quality: int | None) -> _Encoded:
    """JPEG or WebP without loss; PNG where a side is longer than that form allows."""
    form = "WEBP" if quality is None else "JPEG"
    if as_png := max(pixels.shape) > LONGEST[form]:
        form = "PNG"
    out, image = io.BytesIO(), Image.fromarray(pixels)
    # Of these each form takes those that it knows; 80 is the effort of WebP without loss.
    image.save(out, form, quality=quality or 80, subsampling="4:2:0", lossless=True)
    return _Encoded(out.getvalue(), _SUFFIX[form], as_png=as_png)


def _some(
    made: dict[int, _Encoded], one: "partial[_Encoded]", first: int, numbers: range
) -> None:
    made.update((first + k, one(first + k)) for k in numbers)


def _meant(store: Store) -> list[tuple[str | None, int | None]]:
    """Class and split of each image; None where it has none."""
    named = dict(enumerate(store.index.facts.classes))
    both = zip(store.index.label.tolist(), store.index.split.tolist(), strict=True)
    return [(named.get(label), {NO_SPLIT: None}.get(k, k)) for label, k in both]


def _one(store: Store, side: int, quality: int | None, skip: bool, row: int) -> _Encoded:
    """An image, as it was where it is small, where JPEG gains nothing, and where it is broken."""
    raw, suffix = store.read(row), suffix_of(store.index.name(row))
    as_it_was = _Encoded(raw, suffix if suffix in readable() else ".jpg")
    try:
        known = store.index.head(row) or head(raw)
        if store.index.height[row] < 0 or min(known[:2]) <= side:
            return as_it_was
        scale = side / min(known[:2])
        size = round(scale * known.height), round(scale * known.width)
        small = decoded(raw, known, lambda whole: resized(whole, size, "bicubic"))
        image = _encode(small, quality)
        if quality is None:  # with all pixels that were asked for, at times in more bytes
            return image
        if image.suffix == ".jpg" and row % max(1, len(store) // _COMPARED) == 0:
            pixels = decoded(image.raw, head(image.raw), np.copy)
            apart = np.square(pixels - small.astype(np.float32))
            psnr = 10 * math.log10(255**2 / max(1e-9, float(apart.mean())))
            image = image._replace(psnr_db=psnr)
        return image if len(image.raw) < len(raw) else as_it_was
    except DataError as error:
        if skip:  # the others keep their rows
            return as_it_was
        raise DataError(f"{store.shown(row)} {error}.") from error
