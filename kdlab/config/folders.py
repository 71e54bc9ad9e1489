"""Where cards and configs are looked for: the project's own folders come first."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from kdlab.config import evidence, limits
from kdlab.errors import NotFoundError, short

_LISTED = 30  # names shown when none is near
Shelf = Literal["registry", "configs"]
BUNDLED = "kdlab://"
_PACKAGE = Path(__file__).resolve().parent.parent
_PATH = re.compile(
    r"[/~.].*|.*/|.*\.[A-Za-z]{2,11}\d?", re.DOTALL
)  # no name has any of these


def shelves(shelf: Shelf) -> list[Path]:
    """Existing folders, most specific first: the current folder's, then kdlab's own.

    Kdlab's own lie inside the wheel (`_packaged/`) or, in a checkout, beside the package, where
    `benchmarks/` has the cards of the evidence.
    """
    own = [_PACKAGE / "_packaged" / shelf, _PACKAGE.parent / shelf]
    if shelf == "registry" and (beside := evidence.folder()) is not None:
        own.append(beside)
    candidates = [Path.cwd() / shelf, *own]
    unique = dict.fromkeys(path.resolve() for path in candidates)
    return [path for path in unique if path.is_dir()]


def names(shelf: Shelf) -> dict[str, Path]:
    """Every card or config by name; the first shelf that has a name wins."""
    found: dict[str, Path] = {}
    for folder in shelves(shelf):
        for path in sorted(folder.rglob("*.yaml")):
            found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path)
    return found


def find(shelf: Shelf, name: str) -> Path:
    """The file of a card or config.

    Raises:
        NotFoundError: with the nearest names and the folders that were searched.
    """
    clean = name.removeprefix(f"{shelf}/").removesuffix(".yaml")
    what = "card" if shelf == "registry" else "config"
    if len(name) > limits.NAME:
        raise NotFoundError(f"There is no {what} named {short(repr(name), 100)}.")
    if "\0" not in name and ".." not in Path(clean).parts and not Path(clean).is_absolute():
        for folder in shelves(shelf):
            path = folder / f"{clean}.yaml"
            if path.is_file():
                return path
    near = nearest(clean, names(shelf))
    if wrong := wrong_path(name, f"{what}, which is a file that ends in .yaml", near):
        raise NotFoundError(wrong)
    raise NotFoundError(
        f"There is no {what} named {name!r}.{near} "
        f"Searched: {', '.join(map(str, shelves(shelf))) or 'no folder'}."
    )


def located(place: str) -> str:
    """A path as it is; `kdlab://NAME` is a file that comes with kdlab, in registry/bundled.

    Raises:
        NotFoundError: kdlab brings no such file.
    """
    if not place.startswith(BUNDLED):
        return place
    name = place.removeprefix(BUNDLED)
    for folder in shelves("registry"):
        path = folder / "bundled" / name
        if "/" not in name and path.is_file():
            return str(path)
    raise NotFoundError(f"kdlab brings no file {short(name, 60)!r} ({place}).")


def yaml_file(name: str) -> Path | None:
    """The YAML file that was given by its path; None of a name. Any text may be asked about."""
    there = name.endswith(".yaml") and "\0" not in name
    path = os.path.expanduser(name) if there else ""
    return Path(path) if os.path.isfile(path) else None


def is_path(name: str) -> bool:
    """Whether it begins with /, ~ or a dot, or ends with a slash or the suffix of a file."""
    return "\0" not in name and _PATH.fullmatch(name) is not None


def wrong_path(name: str, wanted: str, near: str = "") -> str | None:
    """What is said of a path at which nothing is, or no `wanted`; None of a plain name."""
    if not is_path(name):
        return None
    path = os.path.abspath(os.path.expanduser(name))
    return (
        f"{short(path)} is no {wanted}." if os.path.lexists(path) else no_path(name, near)
    )


def no_path(name: str, near: str = "") -> str:
    """What is said of a path at which nothing is; with what is near where it may be a name."""
    by_name = near.startswith(" Nearest") and not name.startswith(("/", "~"))
    path = os.path.abspath(os.path.expanduser(name))
    return f"There is no file or folder {short(path)}.{near * by_name}"


def require_path(place: str, names: Iterable[str] = ()) -> None:
    """Refuse, as NotFoundError, what is no path of anything, no URL and none of the names."""
    known = list(names)
    there = "://" in place or os.path.exists(os.path.expanduser(place))
    if not there and place not in known:
        raise NotFoundError(no_path(place, nearest(place, known)))


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the closest known names, or with some of them when none is close."""
    pool = list(dict.fromkeys(known))
    close = get_close_matches(name[: limits.NAME], pool, n=3, cutoff=0.5)
    if not close:  # also match the last part alone: "hinton" for "losses/hinton"
        last = name.rsplit("/", 1)[-1]
        close = [k for k in pool if k.rsplit("/", 1)[-1] == last][:3]
    if close:
        return f" Nearest: {', '.join(close)}."
    more = ", ..." if len(pool) > _LISTED else ""
    return f" Known: {', '.join(sorted(pool)[:_LISTED])}{more}." if pool else ""


def display(path: Path) -> str:
    """A path as the user would write it: relative to the current folder or its shelf."""
    for base in (Path.cwd(), _PACKAGE.parent, _PACKAGE / "_packaged"):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return str(path)
