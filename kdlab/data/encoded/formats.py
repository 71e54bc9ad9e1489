"""Suffixes of the readable image formats, and the component that reads a path."""

import os
from functools import cache
from importlib.util import find_spec
from itertools import islice

_SUFFIXES = {  # by Pillow's name. An icon may hold a larger image than it says, EPS is a program.
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "GIF": (".gif",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k", ".j2c", ".jpx", ".jpf"),
    "HEIF": (".heic", ".heif", ".hif"),
}
_OPTIONAL = {"WEBP": "webp", "AVIF": "avif", "JPEG2000": "jpg_2000"}  # of Pillow
_SYSTEM = frozenset((
    *("__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information"),
    *("lost+found", "thumbs.db", "ehthumbs.db", "desktop.ini"),
))  # fmt: skip
_KINDS = {
    **dict.fromkeys((".zip", ".tar", ".tgz", ".gz"), "data/image_folder"),
    **dict.fromkeys((".csv", ".tsv", ".txt"), "data/image_list"),
    ".parquet": "data/parquet",
}
_INSIDE = {".tar": "data/webdataset", ".parquet": "data/parquet", ".arrow": "data/parquet"}
_LOOKED_AT = 10_000  # files of a folder, until its kind is known


@cache
def decoders() -> tuple[str, ...]:
    """Pillow's names of the formats that this machine can read."""
    from PIL import features

    lacks = {name for name, feature in _OPTIONAL.items() if not features.check(feature)}
    if find_spec("pillow_heif") is None:
        lacks.add("HEIF")
    else:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in _SUFFIXES if name not in lacks)


@cache
def readable() -> frozenset[str]:
    """Suffixes of the image formats that this machine can read."""
    return frozenset(suffix for name in decoders() for suffix in _SUFFIXES[name])


def remedy(suffix: str) -> str:
    """Advice on images of a suffix that this machine cannot read, in brackets."""
    named = next((name for name, suffixes in _SUFFIXES.items() if suffix in suffixes), None)
    if named is None or suffix in readable():
        return ""
    if named == "HEIF":
        return " (to read them: pip install 'kdlab[heic]')"
    return f" (the Pillow installed here is built without {named})"


def suffix_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def hidden(name: str) -> str | None:
    """A path up to its first hidden or system part; None where it has none."""
    parts = name.split("/")
    for k, part in enumerate(parts, 1):
        if part.startswith(".") or part.lower() in _SYSTEM:
            return "/".join(parts[:k]) + "/" * (k < len(parts))
    return None


def kind_of(place: str) -> str | None:
    """The component that reads a path or URL; None where nothing is known to be there."""
    path, suffix = os.path.expanduser(place), suffix_of(place)
    if os.path.isdir(path):
        return _kind_of_folder(path)
    if suffix == ".parquet" and os.path.isfile(path) and not _holds_bytes(path):
        return "data/image_list"
    if suffix in _KINDS or "://" in place or place.endswith("/") or os.path.exists(path):
        return _KINDS.get(suffix, "data/image_folder")
    return None


def _kind_of_folder(path: str) -> str:
    files = (name for _, _, names in os.walk(path) for name in names)
    suffixes = {suffix_of(name) for name in islice(files, _LOOKED_AT) if not hidden(name)}
    if not suffixes & readable():
        for suffix, kind in _INSIDE.items():
            if suffix in suffixes:
                return kind
    return "data/image_folder"


def _holds_bytes(path: str) -> bool:
    """Return whether a parquet file has images in it, and not their paths."""
    from pyarrow import types
    from pyarrow.parquet import read_schema

    try:
        kinds = read_schema(path).types
    except (OSError, ValueError):  # reported when it is read
        return True
    return any(map(types.is_struct, kinds)) or any(
        types.is_binary(kind) or types.is_large_binary(kind) for kind in kinds
    )
