"""Images of a store as a data set shows them: decoded when they are asked for."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kdlab.data.augment import Boxes
from kdlab.data.encoded.decode import Box, Head, Pixels, head, view
from kdlab.data.encoded.store import Store
from kdlab.data.encoded.view_threads import in_threads, made_ahead
from kdlab.data.images import ImageData
from kdlab.data.shown import InputSpec
from kdlab.errors import DataError

_GREY = 128
_SAID = 10_000  # images, after which something is said


@dataclass(frozen=True, slots=True)
class EncodedPictures:
    """Rows of a store, each shown as (channels, size, size).

    skip: show grey what cannot be read any more, with a warning; else that is an error.
    threads: that make views; 0 is as many as measured best.
    """

    store: Store
    how: InputSpec
    skip: bool = False
    threads: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.store), self.how.channels, self.how.size, self.how.size

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(n, C, H, W), without augmentation."""
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        self.fill(rows, out)
        return out

    def _shown(
        self, raw: bytes, known: Head, box: Callable[[int, int], Box] | None
    ) -> Pixels:
        """(C, H, W), random part or as in a test."""
        if box is None:
            return self.how.pixels(raw, known)
        part, how = box(known.height, known.width), self.how
        size = (how.size, how.size)
        return view(raw, known, part, size, how.channels, how.interpolation).transpose(
            2, 0, 1
        )

    def tried(
        self, rows: NDArray[np.int64], say: Callable[[str], None]
    ) -> tuple[NDArray[np.uint8], dict[int, str]]:
        """(n, C, H, W), and why some rows, which are grey, cannot be decoded."""
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        bad: dict[int, str] = {}
        for end in range(_SAID, len(rows) + _SAID, _SAID):
            some = slice(end - _SAID, end)
            self.fill(rows[some], out[some], failed=bad.__setitem__)
            if end <= len(rows):
                say(f"decoded {end:,} of {len(rows):,} images")
        return out, bad

    def fill(
        self,
        rows: NDArray[np.int64],
        out: NDArray[np.uint8],
        boxes: Boxes | None = None,
        after: Callable[[slice], None] | None = None,
        failed: Callable[[int, str], None] | None = None,
    ) -> None:
        """Each as it is cut and resized; then what comes `after`, on some at a time.

        `failed` gets what cannot be shown, and why.
        """
        failed = failed or self._not_shown

        def some(numbers: range) -> None:
            for i in numbers:
                row = int(rows[i])
                try:
                    raw = self.store.read(row)
                    known = self.store.index.head(row) or head(raw)
                    out[i] = self._shown(raw, known, boxes and partial(boxes, i))
                except DataError as error:
                    shown = self.store.shown(row)
                    failed(row, str(error) if shown in str(error) else f"{shown} {error}")
                    out[i] = _GREY
            if after is not None:
                after(slice(numbers.start, numbers.stop))

        with suppress(DataError):  # said of each image, when it is read
            self.store.expect(rows)
        in_threads(some, len(rows), self.threads)

    def _not_shown(self, row: int, line: str) -> None:
        if not self.skip:
            raise DataError(line)
        if self.store.first_time(row):
            logging.getLogger("kdlab").warning("%s It is shown in grey.", line)


@dataclass(frozen=True, slots=True)
class EncodedData(ImageData):
    """A set of any number of images, each decoded when it is shown."""

    inputs: EncodedPictures
    slow: ClassVar[bool] = True

    def here(self) -> float:
        return self.inputs.store.here()

    def unmixed(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        if out is None:
            out = np.empty((len(ids), *self.shape), np.uint8)

        def change(rows: slice) -> None:
            out[rows] = self.augment.changed(out[rows], ids[rows], epoch)

        boxes = self.augment.boxes(ids, epoch)  # cut from the originals
        after = change if self.augment.after_crop else None
        self.inputs.fill(self.rows(ids), out, boxes, after)
        return out

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        return made_ahead(lambda ids: self.views(ids, epoch), batches)

    def shown_ahead(
        self, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.uint8]]:
        return made_ahead(self.inputs.__getitem__, batches)
