"""`kdlab reproduce NAME`: makes a result from a card of benchmarks/claims."""

import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.reproduce import result as results
from benchmarks.reproduce.freshness import Facts, changed_since
from benchmarks.reproduce.measurement import Measured
from benchmarks.reproduce.started_runs import RUNS
from benchmarks.reproduce.table import (
    MeasuredRow,
    Reproduction,
    Row,
    Table,
    cells,
    facts_of,
)
from kdlab.config import folders, yaml_text
from kdlab.config import load as loader
from kdlab.config.check import construct
from kdlab.config.home import write_json
from kdlab.errors import BadInput, NotFoundError
from kdlab.report.figures import EmitLine
from kdlab.report.page import markdown, markdown_table

_SHELF = "claims/"
_CHECKOUT = Path(__file__).resolve().parents[2]
_HEAD = ("", "", "published", "simulated", "which is", "off", "measured here", "")


def known() -> dict[str, str]:
    """Return source and minutes of each reproduction, by name."""
    summaries = {}
    for name, path in folders.names("registry").items():
        if name.startswith(_SHELF):
            head = _written_in(path)
            summary = f"{head.get('source', 'a fault')} ({head.get('minutes', '?')} min)"
            summaries[name.removeprefix(_SHELF)] = summary
    return summaries


def card(name: str, overrides: Sequence[str] = ()) -> tuple[str, Table]:
    """Return first line and spec of a reproduction.

    Raises:
        NotFoundError: no card has this name; the message names the nearest.
        SpecError: the card has faults; the message lists all of them.
    """
    clean = _full_name(name)
    composed = loader.compose_card(f"{_SHELF}{clean}", overrides)
    composed.data.setdefault("rows", results.claimed(clean))
    about = _written_in(folders.find("registry", f"{_SHELF}{clean}")).get("about", "")
    return str(about), construct(Table, composed)


def _full_name(name: str) -> str:
    """Return a card's full name from that name, or from a last part that only one card has."""
    clean = name.removeprefix(_SHELF)
    cards = (one for one in folders.names("registry") if one.startswith(_SHELF))
    names = [one.removeprefix(_SHELF) for one in cards]
    if clean in names:
        return clean
    ends = [one for one in names if one.endswith(f"/{clean}")]
    if len(ends) != 1:
        nearest = (
            f" Several are: {', '.join(ends)}." if ends else folders.nearest(clean, names)
        )
        raise NotFoundError(f"Nothing named {clean!r} can be reproduced.{nearest}")
    return ends[0]


def _written_in(path: Path) -> Mapping[str, Any]:
    return yaml_text.read(path, folders.display(path)).data or {}


def reproduce(
    names: str | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    to: str | Path | None = None,
    measures: bool = True,
    keeps: bool = False,
    say: EmitLine = lambda line: None,
) -> list[Reproduction]:
    """Reproduce tables or figures; write result.json, table.md and pictures of each.

    Several with equal measurements are measured once.

    Args:
        names: of cards under benchmarks/claims, such as edl_dist/table3, or a last part
            that only one has, such as rivals.
        overrides: of the cards, such as `measurement.repeats=5`.
        to: folder, with a subfolder for each; None is `reproductions` in the current one.
        measures: False simulates only.
        keeps: also write each result into the tables, as `keep` does.
        say: called with lines of progress.

    Raises:
        NotFoundError, SpecError: as `card` does, before anything is measured.
        BadInput: the folder cannot be written.
    """
    requested = [names] if isinstance(names, str) else list(names)
    cards = {name: card(name, overrides) for name in map(_full_name, requested)}
    root = Path("reproductions" if to is None else to)
    words = [] if measures else ["--simulate-only"]
    # The kept command must not show where a user's images are.
    words += [
        "measurement.images=[...]" if re.search(r"\bimages\b *[=:]", word) else word
        for word in overrides
    ]
    measurements: dict[str, Measured] = {}
    reproductions = []
    for name, (about, table) in cards.items():
        spec = table if measures else _without_measurement(table)
        folder = root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"Nothing can be written to {folder}: {error}") from error
        begin = time.perf_counter()
        result = _reproduced(name, spec, folder, measurements, say)
        done = replace(
            result,
            about=about,
            command=shlex.join(["kdlab", "reproduce", name, *words]),
            seconds=max(
                time.perf_counter() - begin, result.measurement.get("run_seconds", 0)
            ),
        )
        reproductions.append(_written(done, folder, keeps=keeps))
    return reproductions


def _reproduced(
    name: str, spec: Table, folder: Path, measurements: dict[str, Measured], say: EmitLine
) -> Reproduction:
    """Simulate, measure (unless `measurements` has it already), compare and draw."""
    simulated: dict[str, float] = {}
    if spec.simulation is not None:
        from kdlab.run.simulations import simulate  # imports all simulators: slow

        report, _ = simulate(spec.simulation, (), say)
        simulated = {f["name"]: f["value"] for f in report["figures"]}
    measured = Measured(values={})
    if spec.measurement is not None:
        key = repr(spec.measurement)
        if key not in measurements:
            measurements[key] = spec.measurement.measure(folder, say)
        measured = measurements[key]
    rows = tuple(_fill_row(row, simulated, measured) for row in spec.rows)
    for row in rows:
        if row.spec.measured is not None and not (row.measured or row.undefined):
            say(f"warning: nothing was measured of {row.spec.measured} ({row.spec.row})")
    from benchmarks.reproduce.drawn import draw  # imports matplotlib

    pictures = draw(name, spec.picture, rows, measured, folder)
    return Reproduction(
        name=name,
        spec=spec,
        rows=rows,
        figures=(*pictures, *measured.pictures),
        measurement=measured.facts,
        curves=measured.seen,
    )


def _fill_row(row: Row, simulated: Mapping[str, float], measured: Measured) -> MeasuredRow:
    value = None
    if row.simulated is not None and row.simulated in simulated:
        value = simulated[row.simulated] / row.over
        if row.of is not None:
            value = row.of / value
    numbers, why = measured.values.get(row.measured or "", ()), ""
    if row.measured is not None:
        why = measured.undefined.get(row.measured, "")
    return MeasuredRow(row, value, tuple(numbers), why)


def _written(result: Reproduction, folder: Path, *, keeps: bool) -> Reproduction:
    written = [folder / "result.json", folder / "table.md"]
    write_json(written[0], result.facts())
    written[1].write_text(as_markdown(result.facts()), encoding="utf-8")
    if keeps:
        written.append(keep(result))
    if result.measurement:
        (folder / RUNS).unlink(missing_ok=True)  # the next one has runs of its own
    return replace(result, files=(*written, *result.figures))


def _without_measurement(spec: Table) -> Table:
    rows = tuple(replace(row, measured=None, goal=None) for row in spec.rows)
    return replace(spec, measurement=None, rows=rows)


def as_markdown(facts: Facts) -> str:
    """Return the table of a result with its source, origin and notes, for docs."""
    where = facts["machine"]
    command = str(facts["command"]).replace("`", "'")
    origin = (
        f"`{command}`: {facts['seconds']:.0f} s on {where['cores']} cores, "
        f"{where['gpu'] or 'no GPU'}, torch {facts['versions'].get('torch', '?')}."
    )
    sentences = [f"**{markdown(facts['source'])}.** {origin}"]
    if facts.get("published_of"):
        sentences.append(f"Published: {markdown(facts['published_of'])}.")
    if commit := str(facts.get("commit", "")):
        changed = ", ".join(changed_since(facts))
        sentences.append(
            f"Measured at {commit[:12]}{changed and f'; changed since: {changed}'}."
        )
    if chosen := facts.get("measurement", {}).get("chosen"):
        sentences.append(f"Chosen on validation: {markdown(chosen)}.")
    if facts["scaled"]:
        sentences.append(f"Scaled: {markdown(facts['scaled'])}")
    sentences += [markdown(note) for note in facts["notes"]]
    return "\n".join([markdown_rows(facts), "", " ".join(sentences), ""])


def markdown_rows(facts: Facts, quantities: Collection[str] = ()) -> str:
    """Return the rows of a result, or those of `quantities`, in Markdown without empty columns.

    A row that was added to the claim later, and so has no numbers, is left out.
    """
    lines = [
        [markdown(cell) for cell in line]
        for line in cells(facts)
        if any(line[2:]) and (not quantities or line[1] in quantities)
    ]
    columns = [k for k in range(len(_HEAD)) if any(line[k] for line in lines)]
    rows = [[line[k] for k in columns] for line in lines]
    head = [_HEAD[k] for k in columns]
    plainer = {"published": _published(facts), "measured here": _measured(facts)}
    return markdown_table([plainer.get(name, name) for name in head], rows)


def _published(facts: Facts) -> str:
    of = facts.get("published_of")
    return f"published: {markdown(of)}" if of else "published"


def _measured(facts: Facts) -> str:
    return "measured before the code changed" if changed_since(facts) else "measured here"


def keep(result: Reproduction) -> Path:
    """Write a result into benchmarks/results in a checkout, else ./registry/results.

    A result that was only simulated leaves the measured numbers there unchanged.
    """
    shelf = "benchmarks" if Path.cwd().resolve() == _CHECKOUT else "registry"
    rows = card(result.name)[1].rows
    return results.keep(Path(shelf) / "results", result.facts(), rows)


def kept_result(name: str) -> Facts:
    """Return a kept result, with the words of its claim.

    Raises:
        NotFoundError: no result has this name; the message names the nearest.
    """
    folder = results.names().get(name)
    if folder is None:
        near = folders.nearest(name, results.names())
        raise NotFoundError(f"No result {name!r} is kept.{near}")
    _, spec = card(name)
    numbers, why = results.found_in(folder, name), results.undefined_in(folder, name)
    words = {key: getattr(spec, key) for key in ("source", "published_of", "scaled")}
    none = dict.fromkeys(results.FOUND)  # of a row that was added to the claim later
    keyed = [(row, (row.row, row.quantity)) for row in spec.rows]
    rows = [facts_of(row, numbers.get(key, none), why.get(key, "")) for row, key in keyed]
    words |= {"notes": spec.notes, "curves": results.curves_in(folder, name)}
    return results.made_of(folder, name) | words | {"rows": rows}


def stale() -> list[dict[str, Any]]:
    """Return name, command, seconds and commit of each kept result that is older than its code.

    `changed` has the parts of the package that changed since.
    """
    older = []
    for name in results.names():
        facts = kept_result(name)
        if changed := changed_since(facts):
            origin = {key: facts[key] for key in ("name", "command", "seconds", "commit")}
            older.append(origin | {"changed": list(changed)})
    return older


def kept_table(name: str) -> str:
    """Return a kept result in Markdown, for docs and README."""
    return as_markdown(kept_result(name))
