"""Images of a store as views of a data set, decoded on demand."""

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
from kdlab.data.encoded.view_threads import computed_ahead, run_in_threads
from kdlab.data.images import ImageData
from kdlab.data.shown import InputSpec
from kdlab.errors import DataError

_GREY = 128
_SAID = 10_000  # images between lines of progress


@dataclass(frozen=True, slots=True)
class EncodedPictures:
    """Rows of a store as views of (channels, size, size).

    skip: show images that can no longer be read as grey, with a warning; else they are errors.
    threads: that make views; 0 takes the number that measured fastest.
    """

    store: Store
    input_spec: InputSpec
    skip: bool = False
    threads: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        size = self.input_spec.size
        return len(self.store), self.input_spec.channels, size, size

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
        """(C, H, W) of a part of the image, or without augmentation where `box` is None."""
        if box is None:
            return self.input_spec.pixels(raw, known)
        part, spec = box(known.height, known.width), self.input_spec
        size = (spec.size, spec.size)
        pixels = view(raw, known, part, size, spec.channels, spec.interpolation)
        return pixels.transpose(2, 0, 1)

    def decode_all(
        self, rows: NDArray[np.int64], say: Callable[[str], None]
    ) -> tuple[NDArray[np.uint8], dict[int, str]]:
        """(n, C, H, W), and by row the reason why it cannot be decoded; such rows are grey."""
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        reasons: dict[int, str] = {}
        for end in range(_SAID, len(rows) + _SAID, _SAID):
            some = slice(end - _SAID, end)
            self.fill(rows[some], out[some], on_failure=reasons.__setitem__)
            if end <= len(rows):
                say(f"decoded {end:,} of {len(rows):,} images")
        return out, reasons

    def fill(
        self,
        rows: NDArray[np.int64],
        out: NDArray[np.uint8],
        boxes: Boxes | None = None,
        on_filled: Callable[[slice], None] | None = None,
        on_failure: Callable[[int, str], None] | None = None,
    ) -> None:
        """Decode, crop and resize rows into `out`; call `on_filled` for some of them at a time.

        `on_failure` receives each row that cannot be decoded, and the reason.
        """
        on_failure = on_failure or self._not_shown

        def fill_some(numbers: range) -> None:
            for i in numbers:
                row = int(rows[i])
                try:
                    raw = self.store.read(row)
                    known = self.store.index.head(row) or head(raw)
                    out[i] = self._shown(raw, known, boxes and partial(boxes, i))
                except DataError as error:
                    location = self.store.location(row)
                    line = str(error)
                    on_failure(row, line if location in line else f"{location} {line}")
                    out[i] = _GREY
            if on_filled is not None:
                on_filled(slice(numbers.start, numbers.stop))

        with suppress(DataError):  # reported for each image when it is read
            self.store.expect(rows)
        run_in_threads(fill_some, len(rows), self.threads)

    def _not_shown(self, row: int, line: str) -> None:
        if not self.skip:
            raise DataError(line)
        if self.store.report_once(row):
            logging.getLogger("kdlab").warning("%s It is shown in grey.", line)


@dataclass(frozen=True, slots=True)
class EncodedData(ImageData):
    """A data set of any size: each image is decoded for each view."""

    inputs: EncodedPictures
    slow: ClassVar[bool] = True

    def local_share(self) -> float:
        return self.inputs.store.local_share()

    def unmixed(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        if out is None:
            out = np.empty((len(ids), *self.shape), np.uint8)

        def augment(rows: slice) -> None:
            out[rows] = self.augment.changed(out[rows], ids[rows], epoch)

        boxes = self.augment.boxes(ids, epoch)  # cut from the originals
        after = augment if self.augment.after_crop else None
        self.inputs.fill(self.rows(ids), out, boxes, after)
        return out

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        return computed_ahead(lambda ids: self.views(ids, epoch), batches)

    def shown_ahead(
        self, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.uint8]]:
        return computed_ahead(self.inputs.__getitem__, batches)
