"""Any tree of class folders, on disk or inside zip and tar files."""

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.config import Range, register
from kdlab.data.encoded.decode import eight_bits
from kdlab.data.encoded.index import NO_SPLIT
from kdlab.data.encoded.pictures import PIXELS, EncodedData, EncodedPictures
from kdlab.data.encoded.store import Store, indexed
from kdlab.data.images import DataSpec, Decoded, ImageData, Say
from kdlab.data.splits import TEST, TRAIN, by_class
from kdlab.errors import DataError

_SMALL, _FEW = 64, 2e9  # pixels of a side, bytes in all: decoded once


@register("data/image_folder")
@dataclass(frozen=True, kw_only=True)
class ImageFolder(DataSpec):
    """A class-per-folder tree, also inside zip and tar files: [train|val|test]/CLASS/image.

    root: a folder, a zip or tar file, or a list of them that together form one set.
    size: pixels of a side; of larger images the square in the middle is shrunk. Grey images of
        16 bits and of floating-point numbers from 0 to 1 are scaled to 8 bits.
    kept: `decoded` once to this size, in host memory; or `encoded`, and each view is cut from the
        original when it is needed: any number of images, and crops of all their pixels. `auto`
        decodes up to 64 pixels and 2 GB.
    crop_pct: share of the shorter side that the square has, as timm calls it; of encoded images.
    test_share: of all images, class by class, when the tree has no test folder.
    """

    root: str | tuple[str, ...]
    size: Annotated[int, Range(ge=4)] = 32
    channels: Literal[1, 3] = 3
    kept: Literal["auto", "decoded", "encoded"] = "auto"
    crop_pct: Annotated[float, Range(gt=0, le=1)] = 1.0
    test_share: Annotated[float, Range(gt=0, lt=1)] = 0.2

    def roots(self) -> list[Path]:
        names = [self.root] if isinstance(self.root, str) else list(self.root)
        return [Path(os.path.expanduser(name)).resolve() for name in names]

    def store(self, say: Say = lambda line: None, *, verify: bool = False) -> Store:
        """Its images, by their place in the order of names.

        Raises:
            DataError: a root is missing or cannot be read, or there is no image below it.
        """
        roots = self.roots()
        key = sha256("\n".join(map(str, roots)).encode("utf-8", "surrogateescape"))
        return indexed(roots, key.hexdigest()[:16], say, verify=verify)

    def identity(self) -> str:
        store = self.store()
        shape = (self.size, self.channels, self.test_share)
        if self._is_encoded(store):
            return f"image_folder encoded {self._digest(store)} {self.split_seed}"
        stamps = [_stamp(root) for root in self.roots()]
        return f"image_folder v1 {stamps} {shape} {self.split_seed}"

    def expected_bytes(self) -> int:
        return len(self.store()) * self.channels * self.size**2

    def load(self, say: Say = lambda line: None, *, verify: bool = False) -> ImageData:
        store = self.store(say, verify=verify)
        if not self._is_encoded(store):
            return super().load(say, verify=verify)
        labels = store.index.label.astype(np.int64)
        return EncodedData(
            str(self.component),
            EncodedPictures(store, self.size, self.channels, self.crop_pct),
            labels,
            store.index.facts.classes,
            *self._split(labels, self._splits(store, labels)),
            digest=self._digest(store),
            augment=self.augment,
        )

    def _is_encoded(self, store: Store) -> bool:
        if self.kept != "auto":
            return self.kept == "encoded"
        decoded = len(store) * self.channels * self.size**2
        return self.size > _SMALL or decoded > _FEW

    def _digest(self, store: Store) -> str:
        """What the pixels depend on, wherever the files lie."""
        shown = (store.index.facts.digest, self.size, self.channels, self.crop_pct, PIXELS)
        return sha256(repr(shown).encode()).hexdigest()[:16]

    def decode(self, say: Say) -> Decoded:
        store = self.store(say)
        labels = store.index.label.astype(np.int64)
        inputs = decode_all(
            store.shown, store.read, len(store), self.size, self.channels, say
        )
        return Decoded(
            inputs, labels, self._splits(store, labels), store.index.facts.classes
        )

    def _splits(self, store: Store, labels: NDArray[np.int64]) -> NDArray[np.uint8]:
        split = store.index.split.copy()
        split[split == NO_SPLIT] = TRAIN
        if not (split == TEST).any():
            train = np.flatnonzero(split == TRAIN)
            count = round(self.test_share * len(train))
            test, _ = by_class(train, labels, count, self.split_seed + 2)
            split[test] = TEST
        if not (split == TRAIN).any():
            raise DataError(f"{self.root}: there are test images but none to train on.")
        return split


def _stamp(root: Path) -> str:
    """Changes when the tree does; for a folder by its files' sizes and times."""
    if root.is_file():
        return f"{root} {root.stat().st_size} {root.stat().st_mtime_ns}"
    stats = [(str(p), p.stat()) for p in sorted(root.rglob("*")) if p.is_file()]
    lines = "\n".join(f"{n} {s.st_size} {s.st_mtime_ns}" for n, s in stats)
    return f"{root} {sha256(lines.encode()).hexdigest()[:16]}"


def decode_all(
    shown: Callable[[int], str],
    read: Callable[[int], bytes],
    count: int,
    size: int,
    channels: int,
    say: Say,
) -> NDArray[np.uint8]:
    """(N, C, size, size): all images of a set.

    Args:
        shown: where an image lies, by its number.
        read: its bytes.
        count: how many there are.
        size: pixels of a side.
        channels: 1 or 3.
        say: gets a line now and then.

    Raises:
        DataError: names every damaged image (up to ten).
    """
    result = np.empty((count, channels, size, size), np.uint8)
    bad: list[str] = []

    def one(i: int) -> None:
        try:
            result[i] = _pixels(read(i), size, channels)
        except Exception as error:  # Pillow raises a dozen kinds for damaged files
            what = "is not an image" if "identify" in str(error) else str(error)
            bad.append(what if shown(i) in what else f"{shown(i)}: {what}")

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(one, range(count), chunksize=64), 1):
            if done % 10_000 == 0:
                say(f"decoded {done:,} of {count:,} images")
    if bad:
        listed = "\n  ".join(sorted(bad)[:10])
        raise DataError(
            f"{len(bad)} of {count} images cannot be read; nothing was started:\n"
            f"  {listed}\nRepair or remove them."
        )
    return result


def _pixels(raw: bytes, size: int, channels: int) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(raw)) as image:
        plain = eight_bits(image).convert("RGB" if channels == 3 else "L")
    if plain.size != (size, size):  # shorter side to `size`, centre crop
        plain = ImageOps.fit(plain, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]
