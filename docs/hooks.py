"""Pages of the docs that are made from the code: notebooks, the registry, the architecture.

mkdocs calls `on_files` before it builds; what is made here is in no folder.
"""

import html
import re
import tomllib
from base64 import b64decode
from inspect import getsource, getsourcelines
from pathlib import Path

import grimp
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from msgspec.structs import fields
from nbformat import NotebookNode

from benchmarks.reproduce import result
from benchmarks.reproduce.command import kept_result, kept_table
from benchmarks.reproduce.freshness import changed_since
from benchmarks.reproduce.pages import greyed
from kdlab.checks import CodedCheck
from kdlab.events import (
    blockwise,
    ensemble,
    general,
    images,
    ranks,
    runs,
    sweeps,
    teachers,
    training,
)
from kdlab.events import (
    checks as check_events,
)
from kdlab.events.event import Event
from kdlab.report import page
from kdlab.run.catalogue import Registry, Sheet

ROOT = Path(__file__).parent.parent
EXECUTED = ROOT / "build" / "notebooks"
WIDGET = "application/vnd.jupyter.widget-view+json"
LINES = 40  # of what a cell has printed


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages: dict[str, str | bytes] = {}
    for path in notebooks():
        pages |= notebook(path)
    pages["registry.md"] = registry()
    pages["results.md"] = results()
    pages["events.md"] = events()
    pages |= checks()
    pages["pictures/rooms.svg"] = rooms()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Tables of results that are older than their code are grey."""
    return greyed(markdown)


def notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def notebook(path: Path) -> dict[str, str | bytes]:
    """Convert a notebook to Markdown with its outputs, from its executed copy if there is one."""
    executed = EXECUTED / path.name
    cells = nbformat.read(executed if executed.is_file() else path, as_version=4).cells
    pictures: dict[str, str | bytes] = {}
    parts = []
    for number, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            # Cells between them would end a list, and each would begin at 1 again.
            parts.append(re.sub(r"^(\d+)\. ", r"**\1.** ", cell.source, flags=re.MULTILINE))
            continue
        parts.append(_fenced(cell.source, "python"))
        printed = "".join(o.text for o in cell.outputs if o.output_type == "stream")
        if printed.strip():
            parts.append(_fenced(_as_seen(printed)))
        for output in cell.outputs:
            name = f"notebooks/{path.stem}_{number}.png"
            if (shown := _shown(output, name)) is not None:
                parts.append(shown)
            if "image/png" in output.get("data", {}):
                pictures[name] = b64decode(output.data["image/png"])
    parts.append(f"Run it yourself:\n\n    jupyter lab notebooks/{path.name}")
    return {f"notebooks/{path.stem}.md": "\n\n".join(parts) + "\n", **pictures}


def _shown(output: NotebookNode, picture: str) -> str | None:
    """Convert an output to Markdown; None for a widget, whose picture follows it."""
    data = output.get("data", {})
    if WIDGET in data or data.get("text/html") == "":
        return None
    if data.get("text/html"):
        return f'<div class="kd-output">\n{data["text/html"]}\n</div>'
    if "image/png" in data:
        return f"![]({Path(picture).name})"
    return _fenced(data["text/plain"]) if "text/plain" in data else None


def _fenced(text: str, language: str = "text") -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def _as_seen(printed: str) -> str:
    """Keep what a terminal shows in the end: of lines written over each other the last."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in printed.split("\n")]
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in lines]
    shown = [line for k, line in enumerate(plain) if line or (k and plain[k - 1])]
    return "\n".join(shown[:LINES]) + ("\n…" if len(shown) > LINES else "")


def registry() -> str:
    """Every card and component with its values, defaults and ranges."""
    known, parts = Registry(), ["# Registry\n\nMade from the cards and specs themselves.\n"]
    kind = ""
    for name in known:
        if name.split("/", 1)[0] != kind:
            kind = name.split("/", 1)[0]
            parts.append(f"\n## {kind}\n")
        parts.append(_sheet(known[name]))
    return "\n".join(parts)


def results() -> str:
    """Every kept result of `kdlab reproduce`, printed from the two tables of them."""
    parts = [
        "# Results\n\nPrinted from `benchmarks/results`; [what counts](reproduce.md).\n"
    ]
    for name in result.names():
        older = "kd-older" if changed_since(kept_result(name)) else "kd-current"
        table = f'<div class="{older}" markdown>\n\n{kept_table(name)}\n</div>'
        parts.append(f"\n## {name}\n\n{table}")
    return "\n".join(parts)


def checks() -> dict[str, str]:
    """A page for each check, and one that lists them."""
    pages, rows = {}, []
    for code, check in sorted(CodedCheck.ALL.items()):
        pages[f"checks/{code}.md"] = check.page()
        rows.append(
            f"| [{code}](checks/{code}.md) | {check.level} | {check.title} | {check.do} |"
        )
    pages["checks.md"] = "\n".join([_CHECKS, *rows]) + "\n"
    return pages


_CHECKS = """# Checks

What may make a number wrong, worthless or worse than it could be is looked for by checks with
codes. `kdlab data`, `kdlab new`, `kdlab run` (with `--dry-run`, too), `kdlab examine`, `kdlab
sweep` and the live view show the same ones; `kdlab show KD-D01` prints a page in the terminal, and
with `--json` findings are in the key `checks`. An **issue** makes numbers wrong or worthless, a
**tip** could make them better. A check that does not apply says nothing.

| code | | what holds where it passes | what to do else |
| --- | --- | --- | --- |"""


def events() -> str:
    """Every kind of event with its fields, from the classes and the comments beside them."""
    parts = [_EVENTS]
    for module in (
        runs,
        training,
        images,
        teachers,
        ranks,
        blockwise,
        ensemble,
        sweeps,
        check_events,
        general,
    ):
        assert module.__doc__ is not None
        parts.append(f"\n## {module.__doc__.splitlines()[0].rstrip('.')}\n")
        kinds = [k for k in Event.KINDS.values() if k.__module__ == module.__name__]
        parts += [
            _event(kind) for kind in sorted(kinds, key=lambda k: getsourcelines(k)[1])
        ]
    return "\n".join(parts)


_EVENTS = """# Events

Made from the classes in `kdlab/events`. A run's `events.jsonl` has one JSON object a line:
`time` (seconds since 1970), `event` (the name below), `member` (the training, such as
`served/seed0`; absent where the whole run is meant), `rank` (of a group, where it is not the
first), and the fields of the table. A field that may be absent is marked with ?.

    for event in kdlab.attach("last").events(follow=True):
        if event.KIND == "epoch_done":
            print(event.epoch, event.validation_top1)

A kind is the name of its class in small letters, `event.text()` the line that a terminal shows, and
`event.facts()` what stands in the file.
"""


def _event(kind: type[Event]) -> str:
    classes = [c for c in reversed(kind.__mro__) if issubclass(c, Event) and c is not Event]
    source = "".join(map(getsource, classes))
    about = html.escape((kind.__doc__ or "").strip())
    parts = [f"### `{kind.KIND}`\n", about, ""]
    rows = []
    for field in fields(kind):
        line = re.search(rf"^    {field.name}: .*$", source, re.MULTILINE)
        if line is None:  # of every event
            continue
        code, _, comment = line[0].partition("  # ")
        declared = code.partition(": ")[2].partition(" = ")[0]
        name = "others" if field.name == kind.SPREAD else f"`{field.name}`"
        shown = name if field.required or field.name == kind.SPREAD else f"{name}?"
        rows.append([shown, f"`{declared}`".replace("|", "\\|"), comment])
    if rows:
        parts += ["| field | type | |", "| --- | --- | --- |"]
        parts += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(parts) + "\n"


def _sheet(sheet: Sheet) -> str:
    about = html.escape(sheet.about).replace("\n", "<br>\n")
    rows = page.table(sheet.head, sheet.rows) if sheet.rows else ""
    return f"\n### `{sheet.name}`\n\n`{sheet.place}`\n\n{about}\n\n{rows}\n"


def rooms() -> str:
    """The rooms of the house as rows, and who imports whom; read from the code."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    lines = next(c["layers"] for c in contracts["contracts"] if c["type"] == "layers")
    rows = [[name.removeprefix("kdlab.") for name in line.split(" | ")] for line in lines]
    return _drawn(rows, _imports({room for row in rows for room in row}))


def _imports(names: set[str]) -> set[tuple[str, str]]:
    graph = grimp.build_graph("kdlab", "benchmarks")
    pairs = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            pair = _room(module), _room(imported)
            if pair[0] != pair[1] and set(pair) <= names:
                pairs.add(pair)
    return pairs


def _room(module: str) -> str:
    return module.removeprefix("kdlab.").partition(".")[0]


def _drawn(rows: list[list[str]], imports: set[tuple[str, str]]) -> str:
    wide, high, box = 860, 92, (124, 34)
    places: dict[str, tuple[float, float]] = {}
    for y, row in enumerate(rows):
        for x, name in enumerate(row):
            places[name] = (wide * (x + 1) / (len(row) + 1), 30 + high * y)
    height = 30 + high * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" '
        'font-family="sans-serif" font-size="13">'
    ]
    for importer, imported in sorted(imports):
        (x0, y0), (x1, y1) = places[importer], places[imported]
        middle = (y0 + y1) / 2
        parts.append(
            f'<path d="M{x0:.0f} {y0:.0f} C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} '
            f'{x1:.0f} {y1:.0f}" fill="none" stroke="#3b82c4" stroke-opacity="0.35"/>'
        )
    for name, (x, y) in places.items():
        parts.append(
            f'<rect x="{x - box[0] / 2:.0f}" y="{y - box[1] / 2:.0f}" width="{box[0]}" '
            f'height="{box[1]}" rx="6" fill="#eef3fa" stroke="#3b82c4"/>'
            f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{name}</text>'
        )
    return "".join([*parts, "</svg>"])
