"""ImageNet-1k from its official archives, read where they lie; its validation images are `test`."""

import io
import re
import tarfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kdlab.config import Range, register
from kdlab.data.encoded.holders import open_holder, read_stamp, reading
from kdlab.data.encoded.inventory import FoundImage, Inventory
from kdlab.data.encoded.remote import stream_of
from kdlab.data.encoded.walk import Entry, tar_entries, walk
from kdlab.data.image_files import ImageFiles, Roots
from kdlab.data.splits import TEST, TRAIN
from kdlab.errors import DataError

_TRAIN, _TEST = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_WNID = re.compile(r"n\d{8}")
_BUFFER = 1 << 13  # bytes: the reader skips what lies between two headers
_NUMBER = re.compile(r"(\d{8})\.JPEG$", re.IGNORECASE)


@register("data/imagenet")
@dataclass(frozen=True, kw_only=True)
class ImageNet(ImageFiles):
    """ImageNet-1k from its three official archives, never unpacked.

    root: the folder with ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and
        ILSVRC2012_devkit_t12.tar.gz, which image-net.org gives to those who accept its terms. The
        50,000 validation images are `test`.
    """

    root: Roots = "~/data/imagenet"
    size: Annotated[int, Range(ge=4)] = 224
    validation_share: Annotated[float, Range(ge=0, lt=1)] = 0.01

    def find(self, root: str, inventory: Inventory) -> None:
        folder = Path(root)
        with reading(folder):
            if (folder / "train").is_dir() and (folder / "val").is_dir():
                self._unpacked(folder, inventory)
            else:
                self._packed(folder, inventory)

    def _packed(self, folder: Path, inventory: Inventory) -> None:
        """Three archives, as they are downloaded."""
        train, test, devkit = (folder / name for name in (_TRAIN, _TEST, _DEVKIT))
        missing = [path.name for path in (train, test, devkit) if not path.is_file()]
        if missing:
            raise DataError(
                f"{folder} lacks {', '.join(missing)}. ImageNet's licence asks each user to fetch "
                "the archives from image-net.org; put them there as they are, or set `data.root` "
                "to where they lie. Folders train/ and val/, as torchvision unpacks them, do, too."
            )
        names, truth = _devkit(devkit)
        for path, split in ((train, TRAIN), (test, TEST)):
            number = len(inventory.holders)
            inventory.holders.append(str(path))
            inventory.stamps[str(path)] = read_stamp(path)
            images = _train(path) if split == TRAIN else _validation(path, truth)
            for wnid, entry in images:
                inventory.images.append(FoundImage(number, *entry, wnid, split))
        _name_classes(inventory, names)

    def _unpacked(self, folder: Path, inventory: Inventory) -> None:
        """Class folders, as torchvision unpacks them; its val is `test`."""
        inventory.stamps[str(folder)] = read_stamp(folder)
        for name, split in (("train", TRAIN), ("val", TEST)):
            first = len(inventory.images)
            walk(str(folder / name), inventory)
            inventory.put_in(split, first, f"{name}/")
        if (folder / _DEVKIT).is_file():  # else classes are called by their WordNet ids
            _name_classes(inventory, _devkit(folder / _DEVKIT)[0])


def _train(path: Path) -> "list[tuple[str, Entry]]":
    """Images of each class's tar inside the outer tar, with offsets in the outer one."""
    images: list[tuple[str, Entry]] = []
    with closing(open_holder(str(path))) as holder, holder.stream() as raw:
        classes = list(tar_entries(str(path), raw))
        for name, start, _, size, _ in classes:
            wnid = Path(name).stem
            if not _WNID.fullmatch(wnid):
                continue

            def part(at: int, count: int, start: int = start) -> bytes:
                return holder.part(start + at, count)

            inner = stream_of(part, size, _BUFFER)
            for inside, at, packed, length, crc in tar_entries(f"{path}: {name}", inner):
                entry = f"train/{wnid}/{inside}", start + at, packed, length, crc
                images.append((wnid, entry))
    return images


def _validation(path: Path, truth: "list[str]") -> "list[tuple[str, Entry]]":
    images: list[tuple[str, Entry]] = []
    with closing(open_holder(str(path))) as holder, holder.stream() as raw:
        for name, *rest in tar_entries(str(path), raw):
            number = _NUMBER.search(name)
            if number is None:
                continue
            place = int(number.group(1)) - 1
            if not 0 <= place < len(truth):
                raise DataError(f"{path}: {name} has no entry in {_TRUTH} of {_DEVKIT}.")
            start, packed, size, crc = rest
            images.append((truth[place], (f"val/{name}", start, packed, size, crc)))
    return images


def _devkit(path: Path) -> tuple[dict[str, str], list[str]]:
    """Words of each WordNet id, and the id of each validation image, from the devkit."""
    from scipy.io import loadmat

    with tarfile.open(path, "r:gz") as archive:
        members = {Path(member.name).name: member for member in archive.getmembers()}
        absent = [name for name in ("meta.mat", _TRUTH) if name not in members]
        if absent:
            raise DataError(f"{path} lacks {', '.join(absent)}: it is no devkit of 2012.")
        files = [archive.extractfile(members[name]) for name in ("meta.mat", _TRUTH)]
        meta, truth = (b"" if file is None else file.read() for file in files)
    synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    wnid_of, words_of = dict[int, str](), dict[str, str]()
    for synset in synsets:
        if int(synset["num_children"]) == 0:
            wnid = str(synset["WNID"])
            wnid_of[int(synset["ILSVRC2012_ID"])] = wnid
            words_of[wnid] = str(synset["words"])
    return words_of, [wnid_of[int(line)] for line in truth.decode().split()]


def _name_classes(inventory: Inventory, words: dict[str, str]) -> None:
    """Name classes by their words, in the usual order, that of their WordNet ids."""
    wnids = sorted({image.label for image in inventory.images if image.label is not None})
    shown = {wnid: _shown(wnid, words) for wnid in wnids}
    inventory.classes = tuple(shown[wnid] for wnid in wnids)
    images = inventory.images
    inventory.images = [image._replace(label=shown[str(image.label)]) for image in images]


def _shown(wnid: str, words: dict[str, str]) -> str:
    """First word of a class, with its id where two classes share it (crane, maillot)."""
    first = words.get(wnid, wnid).split(",")[0]
    twins = [other for other, text in words.items() if text.split(",")[0] == first]
    return first if len(twins) < 2 else f"{first} ({wnid})"
