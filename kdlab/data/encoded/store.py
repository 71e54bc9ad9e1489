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
from kdlab.config.kept import kept
from kdlab.config.seal import META
from kdlab.data.encoded import remote
from kdlab.data.encoded.decode import Head, decodes, head
from kdlab.data.encoded.holders import LARGEST, Holder, look, opened, reading
from kdlab.data.encoded.index import Index, open_index, write_index
from kdlab.data.encoded.inventory import FoundImage, Inventory
from kdlab.data.encoded.view_threads import in_threads
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
        _room_for(len(index.facts.holders))
        self._lock = threading.Lock()
        self._said: set[int] = set()  # rows of which something was said once

    def __len__(self) -> int:
        return len(self.index)

    def shown(self, row: int) -> str:
        """Where it lies, for people."""
        return _shown(self.index.facts.holders[self.index.holder[row]], self._image(row))

    def read(self, row: int) -> bytes:
        """The encoded bytes of one image.

        Raises:
            DataError: it is gone, is not what it was when it was indexed, or is too large.
        """
        image = self._image(row)
        try:
            return read_image(self._holder(image.holder), image)
        except ContentChanged as error:
            (self._folder / META).unlink(missing_ok=True)
            raise DataError(
                f"{self.shown(row)} {error}: it is damaged, or was changed since the set was "
                "indexed. At the next start it is indexed anew."
            ) from error
        except (OSError, zlib.error) as error:
            raise DataError(f"{self.shown(row)} cannot be read: {error}.") from error

    def _image(self, row: int) -> FoundImage:
        index = self.index
        start, packed = int(index.start[row]), int(index.packed[row])
        place = start, packed, int(index.size[row]), int(index.crc[row])
        return FoundImage(int(index.holder[row]), index.name(row), *place)

    def expect(self, rows: NDArray[np.int64]) -> None:
        """These are read next: what is far away is fetched together."""
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
        """Changes when what it was made from does, or a file of a folder."""
        facts = self.index.facts
        found = hashlib.sha256(repr(facts.looks).encode("utf-8", "surrogateescape"))
        for row in np.flatnonzero(self.index.start < 0).tolist():
            place = facts.holders[self.index.holder[row]]
            if not remote.is_url(place):
                with suppress(OSError):  # it is named when it is read
                    found.update(repr(look(Path(place) / self.index.name(row))).encode())
        return found.hexdigest()[:16]

    def first_time(self, row: int) -> bool:
        """Whether nothing was said of this image yet."""
        with self._lock:
            known = row in self._said
            self._said.add(row)
        return not known

    def here(self) -> float:
        """Share of the images that lie on this machine, by some of them."""
        places = self.index.facts.holders
        if not any(remote.is_url(place) for place in places):
            return 1.0
        rows = np.linspace(0, len(self) - 1, min(len(self), _SAMPLED)).astype(int).tolist()
        found = 0
        for row in rows:
            image = self._image(row)
            name = "" if image.start >= 0 else image.name
            far = remote.is_url(places[image.holder])
            part = (name, max(0, image.start), image.packed)
            found += not far or self._holder(image.holder).has(*part)
        return found / len(rows)

    def _holder(self, number: int) -> Holder:
        with self._lock:
            if number not in self._open:
                facts = self.index.facts
                place = facts.holders[number]
                self._open[number] = opened(place, facts.looks.get(place))
            return self._open[number]

    def close(self) -> None:
        with self._lock:
            for holder in self._open.values():
                holder.close()
            self._open.clear()

    def __del__(self) -> None:
        self.close()


def _shown(place: str, image: FoundImage) -> str:
    return f"{place}{'/' if image.start < 0 else ': '}{image.name}"


class ContentChanged(Exception):
    """Bytes that are not those of the index."""


def read_image(holder: Holder, image: FoundImage) -> bytes:
    """The bytes of an image, held against what is known of them.

    Raises:
        OSError, zlib.error: they cannot be read.
        DataError: it is no image by its size.
        Changed: they are others.
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
    """Its bytes in an archive; a zip has their begin in a header before them."""
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
    """The store of a set, indexed now if it was not before.

    Args:
        key: names the index below `<home>/data/`.
        walk: finds the images.
        say: gets a line when it takes long.
        verify: check the hashes of the index: once a run.

    Raises:
        DataError: what it is made from is missing, holds no image or cannot be read.
    """
    folder = home() / "data" / f"{key}.index"

    def make() -> Index:
        found = walk()
        if len(found.images) > 100_000:
            say(f"found {len(found.images):,} images, indexed once")
        write_index(folder, found, _heads(found))
        if (index := open_index(folder, verify=False)) is None:
            places = list(found.looks)
            raise DataError(
                f"{', '.join(places[:3])}{' ...' if len(places) > 3 else ''} changed while it "
                "was indexed. Start again when nobody writes to it."
            )
        return index

    return Store(kept(folder, partial(open_index, folder, verify=verify), make), folder)


def _room_for(archives: int) -> None:
    """Descriptors for so many archives at once, where the system lets a process have them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = archives + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _heads(found: Inventory) -> Sequence[Head | str | None] | None:
    """What is seen of each image, or why it cannot be decoded; of remote ones nothing."""
    if len(found.images) > _LOOKED_AT:
        return None
    _room_for(len(found.holders))
    holders = [opened(place, found.looks.get(place)) for place in found.holders]
    far = [remote.is_url(place) for place in found.holders]
    heads: list[Head | str | None] = [None] * len(found.images)

    def some(numbers: Iterable[int]) -> None:
        for k in numbers:
            image = found.images[k]
            if not far[image.holder]:
                heads[k] = _head(holders[image.holder], image)

    try:
        in_threads(some, len(found.images))
    finally:
        for holder in holders:
            holder.close()
    return [
        f"{_shown(found.holders[image.holder], image)} {one}"
        if isinstance(one, str)
        else one
        for image, one in zip(found.images, heads, strict=True)
    ]


def _head(holder: Holder, image: FoundImage) -> Head | str:
    """From its first bytes, where these are not packed; a JPEG must have its end, too."""
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
            whole = read_image(holder, image)  # something else may follow its end
            if not decodes(whole):
                return "is cut off: its end is missing"
        try:
            return head(first, image.size)
        except DataError:  # it may say its size further behind
            return head(read_image(holder, image))
    except (FileNotFoundError, PermissionError, zlib.error, ContentChanged) as error:
        return f"cannot be read: {error}"
    except OSError as error:  # of the machine, not of the image: it may be over next time
        raise DataError(f"{image.name} cannot be read: {error}.") from error
    except DataError as error:
        return str(error)
