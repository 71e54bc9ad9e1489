"""Configs, cards and components for `kdlab list` and `show`, listed without imports."""

import contextlib
import html
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

from kdlab.codec import MessageError, to_builtins
from kdlab.config import evidence, folders, load, registry, source_index
from kdlab.config.folders import nearest
from kdlab.config.home import find_as, home, write_json
from kdlab.config.kept import key_of
from kdlab.config.limits import TEXT
from kdlab.config.spec import Spec, field_docs, hints_of, ranges_of, required_fields
from kdlab.errors import NotFoundError, SpecError
from kdlab.report import page
from kdlab.report.table import text_table_left
from kdlab.run.experiment import load as load_experiment

_SHOWN = 100  # characters of a line
_MOST_KEPT = 200  # sheets


def catalogue(kind: str | None = None, word: str | None = None) -> str:
    """List configs, cards and components, a line each; without arguments a short overview.

    Raises:
        NotFoundError: no such kind, or nothing with that word.
    """
    if kind is None and word is None:
        return _overview(_sections())
    return _listed(_chosen(kind, word))


def listed(
    kind: str | None = None, word: str | None = None
) -> dict[str, list[dict[str, str]]]:
    """Return the catalogue for scripts: by kind, rows of how a config names it, name and line.

    Raises:
        NotFoundError: no such kind, or nothing with that word.
    """
    keys = ("how", "name", "about")
    return {
        title: [dict(zip(keys, row, strict=True)) for row in rows]
        for title, rows in _chosen(kind, word).items()
    }


def _chosen(kind: str | None, word: str | None) -> "Sections":
    sections = _sections()
    if kind not in (None, "all"):
        if kind not in sections:
            raise NotFoundError(
                f"There is no kind {kind!r}.{nearest(kind, sections)} "
                f"Kinds: {', '.join(sections)}; `kdlab list --search WORD` finds names."
            )
        sections = {kind: sections[kind]}
    return sections if word is None else _with_word(sections, word)


def _with_word(sections: "Sections", word: str) -> "Sections":
    hits = {
        title: [r for r in rows if word.lower() in f"{r[1]} {r[2]}".lower()]
        for title, rows in sections.items()
    }
    hits = {title: rows for title, rows in hits.items() if rows}
    if not hits:
        names = [name for rows in sections.values() for _, name, _ in rows]
        raise NotFoundError(f"Nothing has {word!r} in it.{nearest(word, names)}")
    return hits


def _overview(sections: "Sections") -> str:
    """A line or two for each kind, with its names as far as they fit."""
    width = max(map(len, sections)) + 6
    lines = []
    for title, rows in sections.items():
        names = dict.fromkeys(name.removeprefix(f"{title}/") for _, name, _ in rows)
        # Configs for tests are listed by their kind only.
        usual = (name for name in names if not name.startswith("smoke/"))
        shown = sorted(usual, key=lambda name: ("/" in name, name))
        lines += wrap(
            ", ".join(shown),
            width=100,
            initial_indent=f"{title} ({len(rows)})".ljust(width),
            subsequent_indent=" " * width,
            max_lines=2,
            placeholder=" ...",
            break_on_hyphens=False,
        )
    lines += [
        "",
        "kdlab list KIND            one kind, a line each (kdlab list all: everything)",
        "kdlab list --search WORD   all with the word in name or line",
        "kdlab show NAME            one in full;  kdlab run NAME  starts a config",
    ]
    return "\n".join(lines)


def _listed(sections: "Sections") -> str:
    blocks = []
    for title, rows in sections.items():
        width = max(len(name) for name, _, _ in rows)
        lines = (f"  {how:4}  {name.ljust(width)}  {about}" for how, name, about in rows)
        blocks.append("\n".join([title, *map(str.rstrip, lines)]))
    return "\n\n".join(blocks)


# By kind, rows of: how YAML names it (use, type, or nothing), name, one line.
Sections = dict[str, list[tuple[str, str, str]]]


def _sections() -> Sections:
    sections: Sections = {}
    for name, path in folders.names("configs").items():
        kind = "sweeps" if name.startswith("sweeps/") else "configs"
        how = "" if kind == "sweeps" else "run"
        sections.setdefault(kind, []).append((how, name, _about(path)))
    for name, path in folders.names("registry").items():
        sections.setdefault(name.split("/", 1)[0], []).append(("use", name, _about(path)))
    for entry in source_index.index():
        sections.setdefault(entry.kind, []).append(("type", entry.name, entry.doc))
    for point in entry_points(group="kdlab.components"):
        room = point.name.split("/", 1)[0]
        sections.setdefault(room, []).append(("type", point.name, f"from {point.value}"))
    return {title: sorted(set(rows)) for title, rows in sorted(sections.items())}


def _parts() -> Sections:
    """All cards and components, with those of notebook cells, without configs."""
    sections = _sections()
    for title in ("configs", "sweeps"):
        sections.pop(title, None)
    for name in registry.known_names():
        if all(name != known for rows in sections.values() for _, known, _ in rows):
            room = sections.setdefault(name.split("/", 1)[0], [])
            room.append(("type", name, "defined here"))
    return sections


def _about(path: Path) -> str:
    """The text of the `about:` line, found without parsing the file."""
    lines = (line for line in _text(path).splitlines() if line.startswith("about:"))
    return next(lines, "about:").removeprefix("about:").strip().strip("'\"")


def _text(path: Path) -> str:
    """The text of a file, damaged ones too, as far as a config may be long."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(TEXT)
    except OSError as error:
        return f"about: cannot be read: {error.strerror}"


@dataclass(frozen=True, slots=True)
class Sheet:
    """The printed form of a card or component, for a terminal or a notebook."""

    name: str
    place: str  # its file
    about: str
    head: tuple[str, str, str]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        table = text_table_left(self.head, self.rows) if self.rows else "(no fields)"
        return f"{self.name}  ({self.place})\n{self.about}\n\n{table}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        about = f"<pre>{html.escape(self.about)}</pre>"
        cards = [page.Card("", about + page.table(self.head, self.rows))]
        return page.CardPage(self.name, cards, detail=self.place).html()


class Registry:
    """All cards and components: `kdlab.registry["losses/hinton"]`. `kdlab.load` loads configs."""

    def __getitem__(self, name: str) -> Sheet:
        if name in folders.names("registry"):
            return card_sheet(name)
        sheet = component_sheet(name)
        if sheet is None:
            is_config = name in folders.names("configs")
            hint = f' It is a config: kdlab.load("{name}").' if is_config else ""
            raise NotFoundError(
                f"There is no card or component named {name!r}.{hint}{nearest(name, self)}"
            )
        return sheet

    def __iter__(self) -> Iterator[str]:
        return (name for rows in _parts().values() for _, name, _ in rows)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

    def __repr__(self) -> str:
        return _listed(_parts())

    def _repr_html_(self) -> str:
        blocks = [
            f"<details><summary>{html.escape(title)} ({len(rows)})</summary>"
            f"{page.table(('how', 'name', 'about'), rows)}</details>"
            for title, rows in _parts().items()
        ]
        return page.shown(page.Card("Registry", "".join(blocks)))


def describe(name: str, overrides: Sequence[str] = ()) -> str:
    """Describe a config, a card or a component in words.

    Raises:
        NotFoundError: it is none of the three; names the nearest.
        SpecError: the config has faults.
    """
    if name.startswith("sweeps/") and name in folders.names("configs"):
        return _sweep(name)
    if name in folders.names("configs") or folders.yaml_file(name):
        return str(_config_sheet(name, overrides))
    return str(_sheet(name, overrides))


def described(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Describe it for scripts: keys (or fields) with values, and where each comes from.

    Raises:
        NotFoundError, SpecError: see `describe`.
    """
    if name in folders.names("configs") or folders.yaml_file(name):
        if name.startswith("sweeps/"):
            return {"name": name, "text": _sweep(name)}
        experiment = load_experiment(name, *overrides)
        return {"name": name, "spec_hash": experiment.hash, "spec": experiment.resolved}
    sheet = _sheet(name, overrides)
    rows = [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]
    return {"name": name, "place": sheet.place, "about": sheet.about, "rows": rows}


def _sheet(name: str, overrides: Sequence[str]) -> Sheet:
    """The sheet of a card or component; NotFoundError where there is none."""
    if name in folders.names("registry"):
        return card_sheet(name, overrides)
    if component := component_sheet(name):
        return component
    known = [*folders.names("configs"), *folders.names("registry")]
    near = nearest(name, known + [entry.name for entry in source_index.index()])
    wanted = "config, which is a file that ends in .yaml"
    words = f"There is nothing named {name!r}.{near}"
    raise NotFoundError(folders.wrong_path(name, wanted, near) or words)


def _config_sheet(name: str, overrides: Sequence[str]) -> Sheet:
    def make() -> Sheet:
        experiment = load_experiment(name, *overrides)
        rows = tuple(
            (key, _word(value), origin) for key, value, origin in experiment.rows()
        )
        about = str(experiment.composed.data.get("about", ""))
        place = f"spec {experiment.hash}"
        return Sheet(experiment.name, place, about, ("key", "value", "set by"), rows)

    tree = load.compose(name, overrides)
    named = registry.component_names(tree.data)
    # The cache ignores changes of other packages: their components are not cached.
    is_own = all(source_index.entry_of(component) for component in named)
    return _cached(f"config {name} {tree.data} {tree.origins}", make) if is_own else make()


def _sweep(name: str) -> str:
    """The text of a sweep's file, unchecked; `kdlab sweep` checks its keys."""
    path = folders.find("configs", name)
    return f"{name}  ({folders.display(path)})\n\n{_text(path)}"


def card_sheet(name: str, overrides: Sequence[str] = ()) -> Sheet:
    """Return the sheet of a card, with the origin of each value; SpecError on faults."""
    path = folders.find("registry", name)
    tree = load.compose_card(name, overrides)
    if tree.faults:
        raise SpecError(tree.faults, about=name)
    rows = tuple((k, _word(v), tree.origin(k)) for k, v in load.flat(tree.data))
    place = folders.display(path)
    return Sheet(name, place, _about(path), ("key", "value", "set by"), rows)


def component_sheet(name: str) -> Sheet | None:
    """Return the sheet of a component: fields, defaults and ranges; None where there is none.

    Sheets of kdlab's components are cached, as importing their classes imports torch.
    """
    try:
        if name not in registry.kdlab_names() or "torch" in sys.modules:
            return _sheet_of_class(name)
        return _cached(f"component {name}", lambda: _sheet_of_class(name))
    except NotFoundError:
        return None


def _cached(key: str, make: Callable[[], Sheet]) -> Sheet:
    """The sheet cached under `key` and the state of kdlab's sources, made where missing."""
    places = filter(None, (Path(__file__).resolve().parent.parent, evidence.folder()))
    sources = (path.stat() for place in places for path in place.rglob("*.py"))
    states = [(source.st_mtime_ns, source.st_size) for source in sources]
    path = home() / "shown" / f"{key_of(f'{key} {sorted(states)}')}.txt"
    with contextlib.suppress(MessageError):  # damaged: make it again
        if cached := find_as(Sheet, path):
            return cached
    sheet = make()
    write_json(path, to_builtins(sheet))
    files = sorted(path.parent.glob("*.txt"), key=lambda file: file.stat().st_mtime)
    for old in files[:-_MOST_KEPT]:
        old.unlink(missing_ok=True)
    return sheet


def _sheet_of_class(name: str) -> Sheet:
    cls, _ = registry.find(name)
    limits, needed = ranges_of(cls), required_fields(cls)
    rows = []
    for field in hints_of(cls):
        if field != "variant":  # part of a family's name
            value = "required" if field in needed else str(getattr(cls, field, None))
            rows.append((field, value, str(limits.get(field, ""))))
    entry = source_index.entry_of(name)
    path = f"{entry.module.replace('.', '/')}.py" if entry else cls.__module__
    about = inspect.cleandoc(cls.__doc__ or "")
    inherited = _inherited(cls)
    about += f"\n\n{inherited}" if inherited else ""
    return Sheet(name, path, about, ("field", "default", "range"), tuple(rows))


def _inherited(cls: type[Spec]) -> str:
    """Descriptions of fields that base classes document."""
    every = field_docs(cls)
    local = field_docs(cls, inherited=False)
    return "\n".join(
        fill(f"{name}: {every[name]}", _SHOWN, subsequent_indent="    ")
        for name in hints_of(cls)
        if name in every and name not in local
    )


def _word(value: object) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if isinstance(value, bool | None) else str(value)
