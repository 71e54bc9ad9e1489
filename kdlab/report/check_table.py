"""Findings of checks for a terminal and for a page."""

import html
from collections.abc import Iterable, Sequence

from kdlab.events.checks import CheckMade
from kdlab.report import page
from kdlab.report.table import folded_table

_COLOURS = {"issue": "#b3261e", "tip": "#8a5a00", "passed": "#1f7a45"}


def worst_first(findings: Iterable[CheckMade]) -> list[CheckMade]:
    """The newest of each code: issues, tips, then what passed."""
    newest = {one.code: one for one in findings}.values()
    order = ("issue", "tip", "passed")
    return sorted(newest, key=lambda one: (order.index(one.result), one.code))


def in_words(findings: Sequence[CheckMade], *, passed: bool = True) -> str:
    """A row for each; those that passed in one line, or none."""
    rows = [
        [one.result, one.code, f"{one.found}\n{one.advice}"]
        for one in findings
        if one.result != "passed"
    ]
    good = [one for one in findings if one.result == "passed"]
    if passed:
        rows += [["passed", one.code, one.title] for one in good]
    elif good:
        rows.append(["passed", "", f"{len(good)} more checks"])
    return folded_table(rows) if rows else ""


def as_page(findings: Sequence[CheckMade]) -> str:
    """HTML: a row for each, those that passed folded."""
    rows = "".join(
        f'<tr style="vertical-align:top"><td style="color:{_COLOURS[one.result]}">{one.result}</td>'
        f"<td>{html.escape(one.code)}</td>"
        f'<td style="text-align:left">{_lines(one.found)}<br><i>{_lines(one.advice)}</i>'
        "</td></tr>"
        for one in findings
        if one.result != "passed"
    )
    good = [[one.code, one.title] for one in findings if one.result == "passed"]
    parts = [f"<table>{rows}</table>"] if rows else []
    if good:
        passed = f"<summary>{len(good)} checks passed</summary>{page.table(['', ''], good)}"
        parts.append(f"<details>{passed}</details>")
    return f'<div style="font-size:12px">{"".join(parts)}</div>' if parts else ""


def _lines(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
