"""The bytes of each image of an indexed set, from folders and archives, never unpacked."""

import hashlib
import resource
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdlab.config.home import home
from kdlab.config.kept import load_or_create
from kdlab.config.seal import META
from kdlab.data.encoded import remote
from kdlab.data.encoded.decode import Head, decodes, head
from kdlab.data.encoded.holders import LARGEST, Holder, open_holder, read_stamp, reading
from kdlab.data.encoded.index import Index, open_index, write_index
from kdlab.data.encoded.inventory import FoundImage, Inventory
from kdlab.data.encoded.view_threads import run_in_threads
from kdlab.data.encoded.walk import LOCAL_HEADER, data_begin
from kdlab.errors import DataError

_UNPACKED, _PACKED_TO = 8_000_000, 20  # bytes of a member, and times of what is packed
_RAW_DEFLATE = -15  # window bits: members of a zip have no header of zlib's
_SLACK = 96  # bytes that a zip may have between a member's name and its data
_HEAD = 1 << 16  # bytes of an image that tell its size
_TAIL = 1 << 12  # bytes in which a whole JPEG has its end
_END_OF_JPEG = b"\xff\xd9"
_OTHER_FILES = 512  # that a process has open beside archives
_SAMPLED = 200  # images, of which it is seen whether they are here
_LOOKED_AT = 200_000  # images: of larger sets each is looked at when it is shown


class Store:
    """Images by their rows in an index; any thread, and a forked process, may read."""

    def __init__(self, index: Index, folder: Path) -> None:
        self.index = index
        self._folder = folder  # of the index
        self._open: dict[int, Holder] = {}  # by number
        _allow_open_files(len(index.facts.holders))
        self._lock = threading.Lock()
        self._reported: set[int] = set()  # rows with a warning

    def __len__(self) -> int:
        return len(self.index)

    def location(self, row: int) -> str:
        """Path or archive and name of an image, for messages."""
        return _location(self.index.facts.holders[self.index.holder[row]], self._image(row))

    def read(self, row: int) -> bytes:
        """The encoded bytes of one image.

        Raises:
            DataError: the image is gone, has changed since it was indexed, or is too large.
        """
        image = self._image(row)
        try:
            return read_image(self._holder(image.holder), image)
        except ContentChanged as error:
            (self._folder / META).unlink(missing_ok=True)
            raise DataError(
                f"{self.location(row)} {error}: it is damaged, or was changed since the set was "
                "indexed. The next start indexes it again."
            ) from error
        except (OSError, zlib.error) as error:
            raise DataError(f"{self.location(row)} cannot be read: {error}.") from error

    def _image(self, row: int) -> FoundImage:
        index = self.index
        start, packed = int(index.start[row]), int(index.packed[row])
        place = start, packed, int(index.size[row]), int(index.crc[row])
        return FoundImage(int(index.holder[row]), index.name(row), *place)

    def expect(self, rows: NDArray[np.int64]) -> None:
        """Prefetch these rows, which are read next: remote parts are fetched together."""
        holders = self.index.facts.holders
        far = [number for number, place in enumerate(holders) if remote.is_url(place)]
        if not far:
            return
        wanted = defaultdict[int, list[tuple[str, int, int]]](list)
        for row in rows[np.isin(self.index.holder[rows], far)]:
            start, packed = int(self.index.start[row]), int(self.index.packed[row])
            part = ("", start, packed) if start >= 0 else (self.index.name(row), 0, packed)
            wanted[int(self.index.holder[row])].append(part)
        for number, parts in wanted.items():
            with reading(holders[number]):
                self._holder(number).expect(parts)

    def stamp(self) -> str:
        """A digest that changes with the sources of the index, or with a file of a folder."""
        facts = self.index.facts
        digest = hashlib.sha256(repr(facts.looks).encode("utf-8", "surrogateescape"))
        for row in np.flatnonzero(self.index.start < 0).tolist():
            place = facts.holders[self.index.holder[row]]
            if not remote.is_url(place):
                with suppress(OSError):  # reported when it is read
                    stamp = read_stamp(Path(place) / self.index.name(row))
                    digest.update(repr(stamp).encode())
        return digest.hexdigest()[:16]

    def report_once(self, row: int) -> bool:
        """True at the first call for a row."""
        with self._lock:
            reported = row in self._reported
            self._reported.add(row)
        return not reported

    def local_share(self) -> float:
        """Share of the images that are on this machine, 0 to 1, from a sample of them."""
        places = self.index.facts.holders
        if not any(remote.is_url(place) for place in places):
            return 1.0
        rows = np.linspace(0, len(self) - 1, min(len(self), _SAMPLED)).astype(int).tolist()
        local = 0
        for row in rows:
            image = self._image(row)
            name = "" if image.start >= 0 else image.name
            far = remote.is_url(places[image.holder])
            part = (name, max(0, image.start), image.packed)
            local += not far or self._holder(image.holder).has(*part)
        return local / len(rows)

    def _holder(self, number: int) -> Holder:
        with self._lock:
            if number not in self._open:
                facts = self.index.facts
                place = facts.holders[number]
                self._open[number] = open_holder(place, facts.looks.get(place))
            return self._open[number]

    def close(self) -> None:
        with self._lock:
            for holder in self._open.values():
                holder.close()
            self._open.clear()

    def __del__(self) -> None:
        self.close()


def _location(place: str, image: FoundImage) -> str:
    return f"{place}{'/' if image.start < 0 else ': '}{image.name}"


class ContentChanged(Exception):
    """An image has other bytes than at indexing."""


def read_image(holder: Holder, image: FoundImage) -> bytes:
    """Read the bytes of an image and compare them with its size and checksum.

    Raises:
        OSError, zlib.error: they cannot be read.
        DataError: it is larger than any image.
        ContentChanged: size or checksum differ.
    """
    size, start, packed = image.size, image.start, image.packed
    if max(size, packed) > LARGEST:
        raise DataError(f"{image.name} has {size / 1e6:,.0f} MB, which no image has.")
    if size > max(_UNPACKED, _PACKED_TO * packed):
        raise DataError(
            f"has {packed:,} bytes that unpack to {size:,}, more than {_PACKED_TO} times as many, "
            "which no image does; save it as PNG"
        )
    if start < 0:
        raw = holder.file(image.name, size)
    else:
        raw = _member(holder, image)
        if packed != size:
            raw = zlib.decompressobj(_RAW_DEFLATE).decompress(raw, size + 1)
    if len(raw) != size:
        raise ContentChanged(f"has {len(raw):,} bytes, it had {size:,}")
    if image.crc >= 0 and zlib.crc32(raw) != image.crc:
        raise ContentChanged("differs from its checksum")
    return raw


def _member(holder: Holder, image: FoundImage) -> bytes:
    """Packed bytes of an archive's member; in a zip a header of unknown size precedes them."""
    start, packed = image.start, image.packed
    if image.crc < 0:  # of a tar, or of a file of many
        return holder.part(start, packed)
    guess = LOCAL_HEADER + len(image.name.encode("utf-8", "surrogateescape")) + _SLACK
    raw = holder.part(start, guess + packed)
    begin = data_begin(raw)
    if begin is None:
        raise ContentChanged(f"has no header at byte {start:,}")
    if begin > guess:
        return holder.part(start + begin, packed)
    return raw[begin : begin + packed]


def indexed(
    key: str,
    walk: Callable[[], Inventory],
    say: Callable[[str], None] = lambda line: None,
    *,
    verify: bool = False,
) -> Store:
    """Open the store of a set; index the set first where no valid index exists.

    Args:
        key: name of the index below `<home>/data/`.
        walk: finds the images.
        say: receives a line when indexing takes long.
        verify: check the hashes of the index: once a run.

    Raises:
        DataError: a source is missing, holds no image or cannot be read.
    """
    folder = home() / "data" / f"{key}.index"

    def make() -> Index:
        inventory = walk()
        if len(inventory.images) > 100_000:
            say(f"indexing {len(inventory.images):,} images, once")
        write_index(folder, inventory, _read_heads(inventory))
        if (index := open_index(folder, verify=False)) is None:
            places = list(inventory.stamps)
            raise DataError(
                f"{', '.join(places[:3])}{' ...' if len(places) > 3 else ''} changed during "
                "indexing. Start again when nothing writes to it."
            )
        return index

    return Store(
        load_or_create(folder, partial(open_index, folder, verify=verify), make), folder
    )


def _allow_open_files(archives: int) -> None:
    """Raise the limit of open files for this many archives, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = archives + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _read_heads(inventory: Inventory) -> Sequence[Head | str | None] | None:
    """Head of each image, or why it cannot be decoded; None for remote images and large sets."""
    if len(inventory.images) > _LOOKED_AT:
        return None
    _allow_open_files(len(inventory.holders))
    stamps = inventory.stamps
    holders = [open_holder(place, stamps.get(place)) for place in inventory.holders]
    far = [remote.is_url(place) for place in inventory.holders]
    heads: list[Head | str | None] = [None] * len(inventory.images)

    def read_some(numbers: Iterable[int]) -> None:
        for k in numbers:
            image = inventory.images[k]
            if not far[image.holder]:
                heads[k] = _read_head(holders[image.holder], image)

    try:
        run_in_threads(read_some, len(inventory.images))
    finally:
        for holder in holders:
            holder.close()
    return [
        f"{_location(inventory.holders[image.holder], image)} {head}"
        if isinstance(head, str)
        else head
        for image, head in zip(inventory.images, heads, strict=True)
    ]


def _read_head(holder: Holder, image: FoundImage) -> Head | str:
    """Head of an image, or why it cannot be decoded; a JPEG must have its end, too."""
    if not image.size:
        return "is empty"
    try:
        if image.start < 0 or image.crc >= 0 or image.size <= _HEAD:
            raw = read_image(holder, image)
            first, last = raw, raw[-_TAIL:]
        else:
            first = holder.part(image.start, _HEAD)
            last = holder.part(image.start + image.size - _TAIL, _TAIL)
        if first[:2] == b"\xff\xd8" and _END_OF_JPEG not in last:
            raw = read_image(holder, image)  # other data may follow the end
            if not decodes(raw):
                return "is cut off: its end is missing"
        try:
            return head(first, image.size)
        except DataError:  # the size may stand further behind
            return head(read_image(holder, image))
    except (FileNotFoundError, PermissionError, zlib.error, ContentChanged) as error:
        return f"cannot be read: {error}"
    except OSError as error:  # of the machine, not of the image: perhaps temporary
        raise DataError(f"{image.name} cannot be read: {error}.") from error
    except DataError as error:
        return str(error)
