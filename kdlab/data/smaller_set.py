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

import numpy as np
from PIL import Image

from kdlab.codec import to_builtins
from kdlab.config.home import home, locked
from kdlab.config.kept import key_of
from kdlab.config.seal import seal
from kdlab.data.encoded.decode import decoded, head, resized
from kdlab.data.encoded.formats import readable, suffix_of
from kdlab.data.encoded.index import NO_SPLIT
from kdlab.data.encoded.inventory import Inventory
from kdlab.data.encoded.store import Store
from kdlab.data.encoded.view_threads import in_threads
from kdlab.data.image_files import ImageFiles
from kdlab.data.image_list import ARCHIVE, TABLE, ImageList, Reencoded
from kdlab.data.images import Notify
from kdlab.data.splits import NAMES
from kdlab.errors import BadInput, DataError

_MOST = 2.0  # of `side_for`
_AT_ONCE = 256  # images in memory
_COMPARED = 200  # images whose PSNR is taken
_SAY_S = 5.0
_Written = tuple[bytes, str, float]  # suffix; PSNR, infinite where nothing was lost


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
            after, psnr_db = _fill(half, store, one, say)
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
            facts = Reencoded(*made, int(index.size.sum()), after, psnr_db)
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
    folder: Path, store: Store, one: "partial[_Written]", say: Notify
) -> tuple[int, float | None]:
    """Write archive and table, some images at a time; bytes of all images, and the PSNR."""
    after, told, apart, made = 0, time.monotonic(), list[float](), dict[int, _Written]()
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
                raw, suffix, psnr = made.pop(row)
                label, split = meant[row]
                name, part = f"{row:09}{suffix}", "" if split is None else NAMES[split]
                archive.writestr(name, raw)
                table.writerow((name, label or "", part, store.index.name(row)))
                after += len(raw)
                apart += [psnr] if psnr < math.inf else []
            if time.monotonic() - told > _SAY_S:
                told, ready = time.monotonic(), first + len(rows)
                say(f"encoded {ready:,} of {len(store):,} images, {after / 1e6:,.0f} MB")
    return after, median(apart) if apart else None


def _some(
    made: dict[int, _Written], one: "partial[_Written]", first: int, numbers: range
) -> None:
    made.update((first + k, one(first + k)) for k in numbers)


def _meant(store: Store) -> list[tuple[str | None, int | None]]:
    """Class and split of each image; None where it has none."""
    named = dict(enumerate(store.index.facts.classes))
    both = zip(store.index.label.tolist(), store.index.split.tolist(), strict=True)
    return [(named.get(label), {NO_SPLIT: None}.get(k, k)) for label, k in both]


def _one(store: Store, side: int, quality: int | None, skip: bool, row: int) -> _Written:
    """An image, as it was where it is small, where nothing is gained, and where it is broken."""
    raw, suffix = store.read(row), suffix_of(store.index.name(row))
    as_it_was = raw, suffix if suffix in readable() else ".jpg", math.inf
    try:
        known = store.index.head(row) or head(raw)
        if store.index.height[row] < 0 or min(known[:2]) <= side:
            return as_it_was
        scale = side / min(known[:2])
        size = round(scale * known.height), round(scale * known.width)
        small = decoded(raw, known, lambda whole: resized(whole, size, "bicubic"))
        out, psnr = io.BytesIO(), math.inf
        if quality is None:
            Image.fromarray(small).save(out, "WEBP", lossless=True)
            return out.getvalue(), ".webp", psnr
        Image.fromarray(small).save(out, "JPEG", quality=quality, subsampling="4:2:0")
        ours = out.getvalue()
        if row % max(1, len(store) // _COMPARED) == 0:
            apart = np.square(decoded(ours, head(ours), np.copy) - small.astype(np.float32))
            psnr = 10 * math.log10(255**2 / max(1e-9, float(apart.mean())))
        return (ours, ".jpg", psnr) if len(ours) < len(raw) else as_it_was
    except DataError as error:
        if skip:  # the others keep their rows
            return as_it_was
        raise DataError(f"{store.shown(row)} {error}.") from error
