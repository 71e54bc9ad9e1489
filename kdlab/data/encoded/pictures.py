"""Images of a store as a data set shows them: decoded when they are asked for."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kdlab.data.augment import Augment
from kdlab.data.encoded.decode import Box, Head, Interpolation, head, view
from kdlab.data.encoded.store import Store
from kdlab.data.encoded.view_threads import in_threads, made_ahead
from kdlab.data.images import ImageData
from kdlab.errors import DataError

PIXELS = 2  # raise when a view changes for the same set: caches of labels depend on it
_GREY = 128


@dataclass(frozen=True, slots=True)
class EncodedPictures:
    """Rows of a store, each shown as (channels, size, size).

    crop_pct: share of the shorter side that the square in the middle has, as timm calls it.
    skip: show grey what cannot be read any more, with a warning; else that is an error.
    threads: that make views; 0 is as many as measured best.
    """

    store: Store
    size: int
    channels: int
    crop_pct: float = 1.0
    interpolation: Interpolation = "bilinear"
    skip: bool = False
    threads: int = 0

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.store), self.channels, self.size, self.size

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(n, C, H, W): the squares in the middle."""
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        self._fill(rows, out, lambda i, known: middle(known, self.crop_pct))
        return out

    def views(
        self,
        ids: NDArray[np.int64],
        epoch: int,
        augment: Augment,
        out: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """(n, C, H, W): the augmented views of these rows in this epoch, cut from the originals."""
        if out is None:
            out = np.empty((len(ids), *self.shape[1:]), np.uint8)

        def change(rows: slice) -> None:
            out[rows] = augment.changed(out[rows], ids[rows], epoch)

        boxes = augment.boxes(ids, epoch)

        def part(i: int, known: Head) -> Box:
            if boxes is None:
                return middle(known, self.crop_pct)
            return Box(*boxes(i, known.height, known.width))

        rows = ids % len(self.store)  # an id may be another copy of a row (sampling.py)
        self._fill(rows, out, part, change if augment.after_crop else None)
        return out

    def _fill(
        self,
        rows: NDArray[np.int64],
        out: NDArray[np.uint8],
        box: Callable[[int, Head], Box],
        after: Callable[[slice], None] | None = None,
    ) -> None:
        """Each part as it is cut and resized; then what comes `after`, on some at a time."""
        side = (self.size, self.size)

        def some(numbers: range) -> None:
            for i in numbers:
                row = int(rows[i])
                try:
                    raw = self.store.read(row)
                    known = self.store.index.head(row) or head(raw)
                    pixels = view(
                        raw, known, box(i, known), side, self.channels, self.interpolation
                    )
                except DataError as error:
                    self._not_shown(row, error)
                    out[i] = _GREY
                else:
                    out[i] = pixels.transpose(2, 0, 1)
            if after is not None:
                after(slice(numbers.start, numbers.stop))

        with suppress(DataError):  # said of each image, when it is read
            self.store.expect(rows)
        in_threads(some, len(rows), self.threads)

    def _not_shown(self, row: int, error: DataError) -> None:
        shown = self.store.shown(row)
        line = str(error) if shown in str(error) else f"{shown} {error}"
        if not self.skip:
            raise DataError(line) from error
        if self.store.first_time(row):
            logging.getLogger("kdlab").warning("%s It is shown in grey.", line)


@dataclass(frozen=True, slots=True)
class EncodedData(ImageData):
    """A set of any number of images, each decoded when it is shown."""

    inputs: EncodedPictures
    slow: ClassVar[bool] = True

    def shown_how(self) -> dict[str, object]:
        shown = self.inputs
        return {
            "size": shown.size,
            "channels": shown.channels,
            "crop_pct": shown.crop_pct,
            "interpolation": shown.interpolation,
        }

    def here(self) -> float:
        return self.inputs.store.here()

    def unmixed(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        return self.inputs.views(ids, epoch, self.augment, out)

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        return made_ahead(lambda ids: self.views(ids, epoch), batches)

    def shown_ahead(
        self, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.uint8]]:
        return made_ahead(self.inputs.__getitem__, batches)


def middle(known: Head, crop_pct: float) -> Box:
    """The square in the middle of an image."""
    side = max(1, round(min(known.height, known.width) * crop_pct))
    return Box((known.width - side) // 2, (known.height - side) // 2, side, side)
