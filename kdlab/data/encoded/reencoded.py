"""What a set that was encoded anew says of itself: beside its table, in a seal."""

from dataclasses import dataclass
from pathlib import Path

from kdlab.codec import Amount, Count, MessageError, typed
from kdlab.config.seal import Damaged, check, sealed
from kdlab.errors import DataError

TABLE, ARCHIVE = "images.csv", "images.zip"


@dataclass(frozen=True, slots=True)
class Reencoded:
    """Facts of such a set."""

    reencoded: str  # digest of the original's names, sizes, checksums and labels
    classes: tuple[str, ...]  # in the original's order
    images: Count
    size: Count  # pixels of a side of the views that it was made for
    side: Count  # pixels that shorter sides were brought to
    form: str  # `JPEG 85` or `WebP lossless`
    bytes_before: Count
    bytes_after: Count
    psnr_db: Amount | None  # what encoding cost some of the resized images; None: nothing

    def __str__(self) -> str:
        cost = "" if self.psnr_db is None else f", {self.psnr_db:.1f} dB PSNR"
        return (
            f"encoded anew from {self.reencoded}, for views of {self.size} pixels: shorter side "
            f"{self.side}, {self.form}{cost}"
        )


def reencoded(table: str) -> Reencoded | None:
    """The facts beside a table, all files held against them; None: it is a table like any.

    Raises:
        DataError: a file is not what it was.
    """
    folder = Path(table).parent
    if Path(table).name != TABLE or "://" in table or not sealed(folder):
        return None
    try:
        return typed(Reencoded, check(folder, hashes=True))
    except (Damaged, MessageError) as error:
        raise DataError(
            f"{folder}, written by `kdlab data --store`, is damaged: {error}. Write it anew."
        ) from error
