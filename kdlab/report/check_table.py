"""Findings of checks for a terminal and for a page."""

import html
from collections.abc import Iterable, Sequence

from kdlab.events.checks import CheckMade
from kdlab.report import page
from kdlab.report.page import Card
from kdlab.report.table import folded_table

_TONES = {"issue": "bad", "tip": "warn"}


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


def cards(findings: Sequence[CheckMade]) -> list[Card]:
    """A card with a row for each, those that passed folded; none without findings."""
    rows = "".join(
        f'<li><b data-tone="{_TONES[one.result]}">{one.result} {html.escape(one.code)}</b>'
        f"<span>{html.escape(one.found)}\n<i>{html.escape(one.advice)}</i></span></li>"
        for one in findings
        if one.result != "passed"
    )
    good = [[one.code, one.title] for one in findings if one.result == "passed"]
    body = f'<ol class="kd-list kd-checks">{rows}</ol>' if rows else ""
    if good:
        passed = f"<summary>{len(good)} checks passed</summary>{page.table([], good)}"
        body += f"<details>{passed}</details>"
    return [Card("Checks", body)] if body else []
