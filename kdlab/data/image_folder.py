"""Any tree of class folders, on disk or inside zip files."""

import io
import os
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from kdlab.config import Range, register
from kdlab.data.images import TEST, TRAIN, VALIDATION, DataSpec, Decoded, Say, by_class
from kdlab.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

_IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm"}
_LARGEST = 300_000_000  # bytes of an image file; a member of a zip is unpacked in memory
_SPLITS = {
    "train": TRAIN, "training": TRAIN, "val": VALIDATION, "valid": VALIDATION,
    "validation": VALIDATION, "test": TEST,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One image file: where it is, and what its path says about it."""

    holder: Path  # the folder or zip file
    inner: str  # path inside it
    label: str
    split: int | None  # None: the tree has no split folders

    @property
    def shown(self) -> str:
        inside = ": " if self.holder.suffix == ".zip" else "/"
        return f"{self.holder}{inside}{self.inner}"


@register("data/image_folder")
@dataclass(frozen=True, kw_only=True)
class ImageFolder(DataSpec):
    """A class-per-folder tree, also inside zips: [train|val|test]/CLASS/image.

    root: a folder, a zip file, or a list of them that together form one set.
    size: pixels of a side; larger images are shrunk and cropped at the centre. Grey images of
        16 bits and of floating-point numbers from 0 to 1 are scaled to 8 bits.
    test_share: of all images, class by class, when the tree has no test folder.
    """

    root: str | tuple[str, ...]
    size: Annotated[int, Range(ge=4)] = 32
    channels: Literal[1, 3] = 3
    test_share: Annotated[float, Range(gt=0, lt=1)] = 0.2

    def roots(self) -> list[Path]:
        names = [self.root] if isinstance(self.root, str) else list(self.root)
        return [Path(os.path.expanduser(name)).resolve() for name in names]

    def files(self) -> list[ImageFile]:
        """Every image of the tree, sorted.

        Raises:
            DataError: a root is missing, or there is no image below it.
        """
        found: list[ImageFile] = []
        for root in self.roots():
            if not root.exists():
                raise DataError(
                    f"{root} does not exist. `root` must be a folder with one folder per "
                    "class, or a zip file of one."
                )
            inside = list(_walk(root))
            if not inside:
                raise DataError(
                    f"{root} holds no images in class folders. Expected "
                    "CLASS/image.png or train/CLASS/image.png, with one of "
                    f"{', '.join(sorted(_IMAGES))}."
                )
            found += inside
        return sorted(found, key=lambda f: (f.inner, str(f.holder)))

    def identity(self) -> str:
        stamps = [_stamp(root) for root in self.roots() if root.exists()]
        self.files()  # missing or empty: say so before anything starts
        shape = (self.size, self.channels, self.test_share)
        return f"image_folder v1 {stamps} {shape} {self.split_seed}"

    def expected_bytes(self) -> int:
        return len(self.files()) * self.channels * self.size**2

    def decode(self, say: Say) -> Decoded:
        files = self.files()
        classes = tuple(sorted({f.label for f in files}))
        number = {name: i for i, name in enumerate(classes)}
        labels = np.array([number[f.label] for f in files], np.int64)
        inputs = decode_files(files, self.size, self.channels, say)
        return Decoded(inputs, labels, self._splits(files, labels), classes)

    def _splits(
        self, files: list[ImageFile], labels: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        split = np.array([TRAIN if f.split is None else f.split for f in files], np.uint8)
        if not (split == TEST).any():
            train = np.flatnonzero(split == TRAIN)
            count = round(self.test_share * len(train))
            test, _ = by_class(train, labels, count, self.split_seed + 2)
            split[test] = TEST
        if not (split == TRAIN).any():
            raise DataError(f"{self.root}: there are test images but none to train on.")
        return split


def _walk(root: Path) -> Iterator[ImageFile]:
    if root.is_file():
        try:
            with zipfile.ZipFile(root) as archive:
                names = archive.namelist()
        except zipfile.BadZipFile as error:
            raise DataError(f"{root} is not a readable zip file: {error}.") from error
    else:
        names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
    for name in names:
        path = PurePosixPath(name)
        if path.suffix.lower() in _IMAGES and len(path.parts) >= 2:
            parent = path.parts[-3].lower() if len(path.parts) > 2 else ""
            yield ImageFile(root, name, path.parts[-2], _SPLITS.get(parent))


def _stamp(root: Path) -> str:
    """Changes when the tree does; for a folder by its files' sizes and times."""
    if root.is_file():
        return f"{root} {root.stat().st_size} {root.stat().st_mtime_ns}"
    stats = [(str(p), p.stat()) for p in sorted(root.rglob("*")) if p.is_file()]
    lines = "\n".join(f"{n} {s.st_size} {s.st_mtime_ns}" for n, s in stats)
    return f"{root} {sha256(lines.encode()).hexdigest()[:16]}"


def decode_files(
    files: list[ImageFile], size: int, channels: int, say: Say
) -> NDArray[np.uint8]:
    """(N, C, size, size) in the order of `files`.

    Raises:
        DataError: names every damaged image (up to ten).
    """
    result = np.empty((len(files), channels, size, size), np.uint8)
    archives = {
        holder: zipfile.ZipFile(holder)
        for holder in {f.holder for f in files if f.holder.suffix == ".zip"}
    }
    bad: list[str] = []

    def one(i: int) -> None:
        file = files[i]
        try:
            path, archive = file.holder / file.inner, archives.get(file.holder)
            size_of = (
                archive.getinfo(file.inner).file_size if archive else path.stat().st_size
            )
            if size_of > _LARGEST:
                raise DataError(f"has {size_of / 1e6:,.0f} MB, which no image has")
            raw = archive.read(file.inner) if archive else path.read_bytes()
            result[i] = _pixels(raw, size, channels)
        except Exception as error:  # Pillow raises a dozen kinds for damaged files
            what = "is not an image" if "identify" in str(error) else str(error)
            bad.append(f"{file.shown}: {what}")

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(one, range(len(files)), chunksize=64), 1):
            if done % 10_000 == 0:
                say(f"decoded {done:,} of {len(files):,} images")
    for archive in archives.values():
        archive.close()
    if bad:
        listed = "\n  ".join(sorted(bad)[:10])
        raise DataError(
            f"{len(bad)} of {len(files)} images cannot be read; nothing was started:\n"
            f"  {listed}\nRepair or remove them."
        )
    return result


def _eight_bits(image: "Image.Image") -> "Image.Image":
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


def _pixels(raw: bytes, size: int, channels: int) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(raw)) as image:
        plain = _eight_bits(image).convert("RGB" if channels == 3 else "L")
    if plain.size != (size, size):  # shorter side to `size`, centre crop
        plain = ImageOps.fit(plain, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]
