"""Find cards and configs; the current folder's come before kdlab's own."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from kdlab.config import evidence, limits
from kdlab.errors import BadInput, NotFoundError, short

_LISTED, _LONGEST = 30, 255  # names shown where none is similar; bytes of a file's name
Shelf = Literal["registry", "configs"]
BUNDLED = "kdlab://"
_PACKAGE = Path(__file__).resolve().parent.parent
_PATH = re.compile(
    r"[/~.].*|.*/|.*\.[A-Za-z]{2,11}\d?", re.DOTALL
)  # names of cards and configs have none of these


def shelves(shelf: Shelf) -> list[Path]:
    """Return existing folders of cards or configs: the current folder's, then kdlab's own.

    Kdlab's own are in the wheel (`_packaged/`) or, in a checkout, next to the package, where
    `benchmarks/` has the cards of the evidence.
    """
    packaged = [_PACKAGE / "_packaged" / shelf, _PACKAGE.parent / shelf]
    if shelf == "registry" and (benchmarks := evidence.folder()) is not None:
        packaged.append(benchmarks)
    candidates = [Path.cwd() / shelf, *packaged]
    unique = dict.fromkeys(path.resolve() for path in candidates)
    return [path for path in unique if path.is_dir()]


def names(shelf: Shelf) -> dict[str, Path]:
    """Return all cards or configs, name to file; the first folder that has a name wins."""
    files: dict[str, Path] = {}
    for folder in shelves(shelf):
        for path in sorted(filter(Path.is_file, folder.rglob("*.yaml"))):
            files.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path)
    return files


def find(shelf: Shelf, name: str) -> Path:
    """Return the file of a card or config.

    Raises:
        NotFoundError: no such name; lists the nearest and the searched folders.
    """
    clean = name.removeprefix(f"{shelf}/").removesuffix(".yaml")
    noun = "card" if shelf == "registry" else "config"
    if len(name) > limits.NAME:
        raise NotFoundError(f"There is no {noun} named {short(repr(name), 100)}.")
    if "\0" not in name and ".." not in Path(clean).parts and not Path(clean).is_absolute():
        for folder in shelves(shelf):
            path = folder / f"{clean}.yaml"
            if path.is_file():
                return path
    near = nearest(clean, names(shelf))
    if message := wrong_path(name, f"{noun}, which is a file that ends in .yaml", near):
        raise NotFoundError(message)
    raise NotFoundError(
        f"There is no {noun} named {name!r}.{near} "
        f"Searched: {', '.join(map(str, shelves(shelf))) or 'no folder'}."
    )


def located(place: str) -> str:
    """Resolve `kdlab://NAME` to the file in registry/bundled; return other paths unchanged.

    Raises:
        NotFoundError: kdlab bundles no such file.
    """
    if not place.startswith(BUNDLED):
        return place
    name = place.removeprefix(BUNDLED)
    for folder in shelves("registry"):
        path = folder / "bundled" / name
        if "/" not in name and path.is_file():
            return str(path)
    raise NotFoundError(f"kdlab bundles no file {short(name, 60)!r} ({place}).")


def user_path(place: str | Path) -> Path:
    """Return a path, its ~ replaced; BadInput without such a user, or for impossible names."""
    path = Path(os.path.expanduser(place))
    if (first := "".join(path.parts[:1])).startswith("~") and not os.path.exists(first):
        why = f"there is no user {short(first[1:])!r}; write ./~ for a name that begins so"
        raise BadInput(f"{short(str(path))} is no path: {why}.")
    most = max((len(part.encode(errors="replace")) for part in path.parts), default=0)
    if most > _LONGEST or "\0" in str(path):
        limit = f"names of files have {_LONGEST} bytes at most, and no NUL"
        raise BadInput(f"{short(repr(str(path)))} is no path: {limit}. Shorten it.")
    return path


def yaml_file(name: str) -> Path | None:
    """Return the YAML file at a path; None where `name` is no such path. Accepts any text."""
    may_exist = name.endswith(".yaml") and "\0" not in name
    path = os.path.expanduser(name) if may_exist else ""
    return Path(path) if os.path.isfile(path) else None


def is_path(name: str) -> bool:
    """True where the text begins with /, ~ or a dot, or ends with a slash or a file suffix."""
    return "\0" not in name and _PATH.fullmatch(name) is not None


def wrong_path(name: str, wanted: str, suggestion: str = "") -> str | None:
    """Return the message for a path that is missing or no `wanted`; None for a plain name."""
    if not is_path(name):
        return None
    path = os.path.abspath(os.path.expanduser(name))
    return (
        f"{short(path)} is no {wanted}."
        if os.path.lexists(path)
        else no_path(name, suggestion)
    )


def no_path(name: str, suggestion: str = "") -> str:
    """Return the message for a missing path, with a suggestion where it may be a name."""
    may_be_name = suggestion.startswith(" Nearest") and not name.startswith(("/", "~"))
    path = os.path.abspath(os.path.expanduser(name))
    return f"There is no file or folder {short(path)}.{suggestion * may_be_name}"


def require_path(place: str, names: Iterable[str] = ()) -> None:
    """Raise NotFoundError unless `place` is an existing path, a URL or one of `names`."""
    known = list(names)
    exists = "://" in place or os.path.exists(os.path.expanduser(place))
    if not exists and place not in known:
        raise NotFoundError(no_path(place, nearest(place, known)))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the most similar known names, or with some where none is similar."""
    pool = list(dict.fromkeys(known))
    close = get_close_matches(name[: limits.NAME], pool, n=3, cutoff=0.5)
    if not close:  # match the last part: "hinton" for "losses/hinton"
        last = name.rsplit("/", 1)[-1]
        close = [k for k in pool if k.rsplit("/", 1)[-1] == last][:3]
    if close:
        return f" Nearest: {', '.join(close)}."
    more = ", ..." if len(pool) > _LISTED else ""
    return f" Known: {', '.join(sorted(pool)[:_LISTED])}{more}." if pool else ""


def display(path: Path) -> str:
    """Return a path as the user would write it: relative to the current folder or the package."""
    for base in (Path.cwd(), _PACKAGE.parent, _PACKAGE / "_packaged"):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return str(path)
