"""Write a set of photos again, at the size that its views need.

The cost of a view is the bytes and the pixels of its original. Images are decoded once, resized to
the side from which views lose nothing, and written into one zip with a table, which
`data/image_list` reads like any other. The folder gets its name once it is complete and verified.
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
from kdlab.data.encoded.view_threads import run_in_threads
from kdlab.data.image_files import ImageFiles
from kdlab.data.image_list import ARCHIVE, LONGEST, TABLE, ImageList, Reencoded
from kdlab.data.images import Notify
from kdlab.data.splits import NAMES
from kdlab.errors import BadInput, DataError

_MOST = 2.0  # times a view's side, in `side_for`
_AT_ONCE = 256  # images in memory
_COMPARED = 200  # images whose PSNR is measured
_SAY_S = 5.0
_SUFFIX = {"JPEG": ".jpg", "WEBP": ".webp", "PNG": ".png"}
_FORMULA = tuple("=+-@\t\r")  # a cell that begins with one is computed by a spreadsheet


class _Encoded(NamedTuple):
    """An image as it is written into the archive."""

    raw: bytes
    suffix: str
    psnr_db: float = math.inf  # where nothing was lost
    as_png: bool = False  # too long for the requested format


def side_for(spec: ImageFiles, factor: float | None = None) -> int:
    """Pixels of the shorter side from which views of a set lose nothing.

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
    """Write a set into a new folder, which appears once it is complete.

    Args:
        spec: the images; its size, crops and `broken` are used.
        folder: must not exist.
        quality: of JPEG (4:2:0), 1 to 100; None is lossless WebP.
        factor: of `side_for`, 1 to 16.
        say: receives a line every few seconds.

    Raises:
        BadInput: a setting is out of range, or the folder exists or cannot be written.
        DataError: an image cannot be read or decoded, or a table cannot hold the labels.
    """
    if not (quality in (None, *range(1, 101)) and (factor is None or 1 <= factor <= 16)):
        raise BadInput("A store needs a quality of 1 to 100 and a factor of 1 to 16.")
    folder = folder.expanduser().absolute()
    draft = folder.with_name(f".{folder.name}.partial")  # a killed process may have left it
    with locked(home() / "data" / f"{key_of(str(folder))}.lock"):
        if folder.exists():
            raise BadInput(f"{folder} exists. Name a new folder, or remove it first.")
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            store, side = spec.store(say, verify=True), side_for(spec, factor)
            spec.refuse_broken(store.index.facts.broken, store, say)
            convert = partial(_convert, store, side, quality, spec.broken == "skip")
            after, psnr_db, larger, as_png = _fill(draft, store, convert, say)
            form = "WebP lossless" if quality is None else f"JPEG {quality}"
            facts, before = store.index.facts, int(store.index.size.sum())
            of_set = facts.digest, facts.classes, len(store), spec.size, side, form
            written = Reencoded(*of_set, before, after, psnr_db, larger, as_png)
            seal(draft, (ARCHIVE, TABLE), to_builtins(written))
            inventory, table = Inventory(), str(draft / TABLE)
            ImageList(root=table).find(table, inventory)
            images = sorted(inventory.images, key=lambda image: image.name)
            if [(image.label, image.split) for image in images] != _labels_of(store):
                raise DataError("A table cannot hold the names of these classes.")
            os.rename(draft, folder)
        except OSError as error:
            raise BadInput(f"{folder} cannot be written: {error}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return written


def _fill(
    folder: Path, store: Store, convert: "partial[_Encoded]", say: Notify
) -> tuple[int, float | None, int, int]:
    """Write the archive and the table, some images at a time.

    Returns:
        Bytes of all images, the median PSNR in dB (None: nothing was lost), how many images have
        more bytes than before, and how many are PNG because of their length.
    """
    after, larger, as_png, reported_at = 0, 0, 0, time.monotonic()
    psnrs, encoded = list[float](), dict[int, _Encoded]()
    with (
        zipfile.ZipFile(folder / ARCHIVE, "w") as archive,
        open(folder / TABLE, "w", encoding="utf-8", errors="replace", newline="") as file,
    ):
        table, labels = csv.writer(file), _labels_of(store)
        table.writerow(("path", "label", "split", "original"))
        for first in range(0, len(store), _AT_ONCE):
            rows = np.arange(first, min(first + _AT_ONCE, len(store)))
            store.expect(rows)
            run_in_threads(partial(_convert_some, encoded, convert, first), len(rows))
            for row in rows.tolist():
                raw, suffix, psnr, too_long = encoded.pop(row)
                label, split = labels[row]
                name, part = f"{row:09}{suffix}", "" if split is None else NAMES[split]
                archive.writestr(name, raw)
                table.writerow((name, label or "", part, _cell(store.index.name(row))))
                after += len(raw)
                larger += len(raw) > int(store.index.size[row])
                as_png += too_long
                psnrs += [psnr] if psnr < math.inf else []
            if time.monotonic() - reported_at > _SAY_S:
                reported_at, ready = time.monotonic(), first + len(rows)
                say(f"encoded {ready:,} of {len(store):,} images, {after / 1e6:,.0f} MB")
    return after, median(psnrs) if psnrs else None, larger, as_png


def _cell(path: str) -> str:
    """Path that no spreadsheet takes for a formula; labels are read back, so they stay."""
    return f"./{path}" if path.startswith(_FORMULA) else path


def _encode(pixels: Pixels, quality: int | None) -> _Encoded:
    """Encode as JPEG or lossless WebP; as PNG where a side is too long for these."""
    form = "WEBP" if quality is None else "JPEG"
    if as_png := max(pixels.shape) > LONGEST[form]:
        form = "PNG"
    out, image = io.BytesIO(), Image.fromarray(pixels)
    # Each format takes the options it knows; 80 is the effort of lossless WebP.
    image.save(out, form, quality=quality or 80, subsampling="4:2:0", lossless=True)
    return _Encoded(out.getvalue(), _SUFFIX[form], as_png=as_png)


def _convert_some(
    encoded: dict[int, _Encoded], convert: "partial[_Encoded]", first: int, numbers: range
) -> None:
    encoded.update((first + k, convert(first + k)) for k in numbers)


def _labels_of(store: Store) -> list[tuple[str | None, int | None]]:
    """Class and split of each image; None where there is none."""
    named = dict(enumerate(store.index.facts.classes))
    both = zip(store.index.label.tolist(), store.index.split.tolist(), strict=True)
    return [(named.get(label), {NO_SPLIT: None}.get(k, k)) for label, k in both]


def _convert(
    store: Store, side: int, quality: int | None, skip: bool, row: int
) -> _Encoded:
    """Resize and encode an image; small and broken ones, and JPEGs that would grow, stay."""
    raw, suffix = store.read(row), suffix_of(store.index.name(row))
    original = _Encoded(raw, suffix if suffix in readable() else ".jpg")
    try:
        known = store.index.head(row) or head(raw)
        if store.index.height[row] < 0 or min(known[:2]) <= side:
            return original
        scale = side / min(known[:2])
        size = round(scale * known.height), round(scale * known.width)
        small = decoded(raw, known, lambda pixels: resized(pixels, size, "bicubic"))
        image = _encode(small, quality)
        if quality is None:  # also where it takes more bytes: the size was requested
            return image
        if image.suffix == ".jpg" and row % max(1, len(store) // _COMPARED) == 0:
            pixels = decoded(image.raw, head(image.raw), np.copy)
            apart = np.square(pixels - small.astype(np.float32))
            psnr = 10 * math.log10(255**2 / max(1e-9, float(apart.mean())))
            image = image._replace(psnr_db=psnr)
        return image if len(image.raw) < len(raw) else original
    except DataError as error:
        if skip:  # so that the others keep their rows
            return original
        raise DataError(f"{store.location(row)} {error}.") from error
