"""Text tables for terminal, README, docs and notebooks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from textwrap import TextWrapper, fill
from typing import Any

NAMES = {
    "none": "N-training (no teacher)",
    "in_process": "Online (teacher in process)",
    "cached": "Offline (cached labels)",
    "served": "EDL-Dist (served teachers)",
    "scripted": "scripted labels",
    "tr": "Pipe-BD, teacher relaying",
    "ahd": "Pipe-BD, automatic hybrid distribution",
    "ir": "Pipe-BD, internal relaying",
    "dp": "blockwise, data parallel (DP)",
    "ls": "blockwise, layerwise tasks (LS)",
    "s_dnn": "S-DNN (one machine)",
    "e_dnn": "E-DNN (ensemble at the end)",
    "ma_dnn": "MA-DNN (averaged weights)",
    "ec_dnn": "EC-DNN (ensemble, compressed)",
}


METHODS = "comparison.md"  # table of a run of several methods, next to its spec
_MemberFacts = Mapping[str, Any]  # result of a member, as in `--json`

_ONE_AFTER_THE_OTHER = (
    "Trainings ran one after the other, so other load on the machine affects their speeds. "
    "kdlab bench\nmeasures side by side."
)
NO_SPEEDS = "No speeds: teachers shared cores with their student, so speeds do not compare."

# Control characters except newline and tab; and those that change the text direction.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Escape control characters, which names of untrusted classes and files may have.

    They could move a terminal's cursor, clear it, or answer in the user's place.
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table: the first column left-aligned, the others right-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return _aligned(lines, left=1)


def text_table_left(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table of left-aligned columns, for words."""
    return _aligned([list(head), *map(list, rows)], left=len(head))


def folded_table(rows: Sequence[Sequence[str]], wide: int = 100) -> str:
    """Return a left-aligned table whose last column wraps; its line breaks stay."""
    *before, _ = zip(*rows, strict=True)
    room = wide - sum(max(map(len, column)) + 2 for column in before)
    fold = TextWrapper(room, break_long_words=False, break_on_hyphens=False)  # for paths
    lines = []
    for *cells, text in rows:
        parts = [part for line in text.splitlines() for part in fold.wrap(line)] or [""]
        lines += [[*cells, parts[0]], *([*[""] * len(cells), part] for part in parts[1:])]
    return _aligned(lines, left=len(lines[0]))


def _aligned(lines: Sequence[Sequence[str]], left: int) -> str:
    """Align the first `left` columns left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: object) -> str:
    """Format a float with four digits and None as a dash; others with str()."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Format a duration: 45 s, 3:20 min, 2:05 h."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h"


def spread(values: Sequence[float], digits: int) -> str:
    """Format mean ± standard deviation; a single value without ±."""
    error = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{error}"


def speeds_tell(rows: Iterable[_MemberFacts]) -> bool:
    """Return whether speeds of trainings compare; else `NO_SPEEDS` replaces them.

    Args:
        rows: results, maybe of an older kdlab.
    """
    kinds = {(row.get("source"), row.get("shares_cores")) for row in rows}
    return len(kinds) < 2 or not any(shared for _, shared in kinds)


def not_trained_on(rows: Sequence[_MemberFacts]) -> str:
    """Return the first line of a result: lost samples by member; empty where none are lost."""
    sentences = list[str]()
    for row in rows:
        if (lost := row["samples_lost"]) > 0:
            prefix = f"{rounds}: " if (rounds := row.get("without")) else ""
            total = lost + row["samples_seen"]
            samples = f"{lost:,} of {total:,} samples of {row['member']}"
            sentences.append(f"{prefix}{samples} were not trained on.")
    return " ".join(sentences)


def result_table(rows: Sequence[_MemberFacts], teacher_top1: float | None = None) -> str:
    """Return a table of a run: one line per source of soft labels, mean ± std over seeds.

    Args:
        rows: result of each member.
        teacher_top1: test accuracy in percent; None without a teacher.
    """
    groups = {
        row["source"]: [r for r in rows if r["source"] == row["source"]] for row in rows
    }

    def spreads(key: str, digits: int) -> list[str]:
        return [spread([row[key] for row in group], digits) for group in groups.values()]

    columns = {"": [NAMES.get(source, source) for source in groups]}
    columns["top-1 %"] = spreads("student_top1", 2)
    if all(row.get("global_top1") is not None for row in rows):
        columns["global top-1 %"] = spreads("global_top1", 2)
    columns["best-on-val %"] = spreads("student_top1_best", 2)
    if comparable := speeds_tell(rows):
        rates = [fmean(r["samples_per_second"] for r in group) for group in groups.values()]
        columns["samples/s"] = spreads("samples_per_second", 0)
        columns["speed"] = [f"{rate / rates[0]:.2f}x" for rate in rates]
    columns["wall s"] = spreads("wall_seconds", 1)
    columns["lost/repeated"] = [
        f"{sum(r['samples_lost'] for r in group)}/{sum(r['samples_repeated'] for r in group)}"
        for group in groups.values()
    ]
    body = [[*cells] for cells in zip(*columns.values(), strict=True)]
    if teacher_top1 is not None:
        body.append(["teacher", f"{teacher_top1:.2f}", *["-"] * (len(columns) - 2)])
    notes = [_ONE_AFTER_THE_OTHER if comparable else NO_SPEEDS] if len(groups) > 1 else []
    notes += [
        fill(f"{row['member']}: {verdict}", 100)
        for row in rows
        if (verdict := row.get("verdict"))
    ]
    lines = [not_trained_on(rows), text_table([*columns], body), *notes]
    return "\n".join(filter(None, lines))
