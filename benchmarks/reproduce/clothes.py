"""How the bundled photos of clothing were made: python -m benchmarks.reproduce.clothes PHOTOS OUT.

PHOTOS is a zip of SPLIT/CLASS/photo.jpg, as the "clothing dataset small" is after its
near-duplicates were dropped (registry/bundled/clothes.txt). Each photo becomes the square in its
middle, 64 by 64 pixels. The same bytes come out with the same Pillow and libjpeg.
"""

import io
import sys
import zipfile
from collections import Counter
from pathlib import Path

from PIL import Image, ImageOps

SIDE, QUALITY = 64, 60
_WHEN = (2026, 1, 1, 0, 0, 0)  # of every member: the zip depends only on the photos


def shrink(photos: Path, out: Path) -> int:
    """Write a zip of the small photos and return its size in bytes."""
    counts: Counter[str] = Counter()
    with (
        zipfile.ZipFile(photos) as source,
        zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name in sorted(source.namelist()):
            folder = name.rpartition("/")[0]
            with Image.open(io.BytesIO(source.read(name))) as photo:
                small = ImageOps.fit(
                    photo.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS
                )
            written = io.BytesIO()
            small.save(written, "JPEG", quality=QUALITY, optimize=True)
            entry = zipfile.ZipInfo(f"{folder}/{counts[folder]:03}.jpg", _WHEN)
            archive.writestr(entry, written.getvalue())
            counts[folder] += 1
    return out.stat().st_size


if __name__ == "__main__":
    sys.stdout.write(f"{shrink(Path(sys.argv[1]), Path(sys.argv[2])):,} bytes\n")
