"""What there is, in words: `kdlab list`, `show`, `runs`. Lists without importing."""

import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kdlab.config import folders, load, source_index
from kdlab.config.folders import nearest
from kdlab.errors import NotFoundError, SpecError
from kdlab.report.table import text_table

if TYPE_CHECKING:
    from kdlab.run.handle import Run


def catalogue(kind: str | None = None) -> str:
    """Configs, cards and components with one line each.

    Raises:
        NotFoundError: no such kind; lists them.
    """
    sections = _sections()
    if kind is not None:
        if kind not in sections:
            raise NotFoundError(
                f"There is no kind {kind!r}.{nearest(kind, list(sections))} "
                f"Kinds: {', '.join(sections)}."
            )
        sections = {kind: sections[kind]}
    blocks = []
    for title, rows in sections.items():
        width = max(len(name) for name, _, _ in rows)
        lines = [
            f"  {how:4}  {name.ljust(width)}  {about}".rstrip() for how, name, about in rows
        ]
        blocks.append("\n".join([title, *lines]))
    return "\n\n".join(blocks)


Row = tuple[str, str, str]  # how YAML names it (use, type, or nothing), name, one line


def _sections() -> dict[str, list[Row]]:
    sections: dict[str, list[Row]] = {}
    for name, path in folders.names("configs").items():
        sections.setdefault("configs", []).append(("run", name, _about(path)))
    for name, path in folders.names("registry").items():
        sections.setdefault(name.split("/", 1)[0], []).append(("use", name, _about(path)))
    for entry in source_index.index():
        sections.setdefault(entry.kind, []).append(("type", entry.name, entry.doc))
    for point in entry_points(group="kdlab.components"):
        room = point.name.split("/", 1)[0]
        sections.setdefault(room, []).append(("type", point.name, f"from {point.value}"))
    return {title: sorted(set(rows)) for title, rows in sorted(sections.items())}


def _about(path: Path) -> str:
    """The `about:` line, without parsing the whole file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("about:"):
                return line.removeprefix("about:").strip().strip("'\"")
    return ""


def describe(name: str, overrides: Sequence[str] = ()) -> str:
    """A config, a card, or a component.

    Raises:
        NotFoundError: none of the three; names the nearest.
        SpecError: a config with faults.
    """
    if name in folders.names("configs") or Path(name).is_file():
        return _experiment(name, overrides)
    if name in folders.names("registry"):
        return _card(name, overrides)
    component = _component(name)
    if component is not None:
        return component
    known = [*folders.names("configs"), *folders.names("registry")]
    known += [entry.name for entry in source_index.index()]
    raise NotFoundError(f"There is nothing named {name!r}.{nearest(name, known)}")


def _experiment(name: str, overrides: Sequence[str]) -> str:
    from kdlab.run.experiment import load as load_experiment

    experiment = load_experiment(name, *overrides)
    about = experiment.composed.data.get("about", "")
    head = f"{experiment.name}  (spec {experiment.hash})\n{about}\n\n"
    return head + _rows(experiment.rows())


def _card(name: str, overrides: Sequence[str]) -> str:
    path = folders.find("registry", name)
    tree = load.compose_card(name, overrides)
    if tree.faults:
        raise SpecError(tree.faults, about=name)
    rows = [(key, value, tree.origin(key)) for key, value in load.flat(tree.data)]
    return f"{name}  ({folders.display(path)})\n{_about(path)}\n\n{_rows(rows)}"


def _component(name: str) -> str | None:
    family = f"{name.split('/', 1)[0]}/*"
    for entry in source_index.index():
        if entry.name in (name, family):
            break
    else:
        return None
    from kdlab.config import registry
    from kdlab.config.spec import hints_of, ranges_of

    cls, _ = registry.find(name)
    limits = ranges_of(cls)
    defaults = {f.name: f for f in entry.fields}
    rows = []
    for field in hints_of(cls):
        if field == "variant":
            continue
        own = defaults.get(field)
        value = (
            getattr(cls, field, None)
            if own is None or own.default is not None
            else "required"
        )
        rows.append([field, str(value), str(limits.get(field, ""))])
    path = entry.module.replace(".", "/") + ".py"
    doc = (cls.__doc__ or "").strip()
    table = text_table(["field", "default", "range"], rows) if rows else "(no fields)"
    return f"{name}  ({path})\n{doc}\n\n{table}"


def _rows(rows: Sequence[tuple[str, Any, str]]) -> str:
    return text_table_left(
        ["key", "value", "set by"], [[k, _word(v), o] for k, v, o in rows]
    )


def text_table_left(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _word(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if isinstance(value, bool | None) else str(value)


def runs_table(runs: Sequence["Run"]) -> str:
    if not runs:
        return "There are no runs yet. Start one: kdlab run quickstart"
    rows = []
    for run in runs:
        status = run.status
        result = status.get("result") or {}
        top1 = result.get("student_top1")
        wall = result.get("wall_seconds")
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.get("created", 0)))
        rows.append(
            [
                run.id,
                str(run.folder.experiment().get("experiment")),
                str(status.get("state")),
                created,
                "-" if top1 is None else f"{top1:.2f}",
                "-" if wall is None else f"{wall:.0f}",
            ]
        )
    return text_table_left(
        ["run", "experiment", "state", "started", "top-1 %", "wall s"], rows
    )
