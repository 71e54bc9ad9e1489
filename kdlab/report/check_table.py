"""Findings of checks for a terminal and for a page."""

import html
from collections.abc import Iterable, Sequence

from kdlab.events.checks import CheckMade
from kdlab.report import page
from kdlab.report.page import Card
from kdlab.report.table import folded_table

_TONES = {"issue": "bad", "tip": "warn"}


def worst_first(findings: Iterable[CheckMade]) -> list[CheckMade]:
    """Return the newest finding of each code: issues, then tips, then passed checks."""
    newest = {finding.code: finding for finding in findings}.values()
    order = ("issue", "tip", "passed")
    return sorted(newest, key=lambda finding: (order.index(finding.result), finding.code))


def in_words(findings: Sequence[CheckMade], *, passed: bool = True) -> str:
    """Return findings as a text table; passed checks as rows or as one line."""
    rows = [
        [finding.result, finding.code, f"{finding.found}\n{finding.advice}"]
        for finding in findings
        if finding.result != "passed"
    ]
    good = [finding for finding in findings if finding.result == "passed"]
    if passed:
        rows += [["passed", finding.code, finding.title] for finding in good]
    elif good:
        rows.append(["passed", "", f"{len(good)} more checks"])
    return folded_table(rows) if rows else ""


def cards(findings: Sequence[CheckMade]) -> list[Card]:
    """Return a card of findings with passed checks folded; empty without findings."""
    rows = "".join(
        f'<li><b data-tone="{_TONES[f.result]}">{f.result} {html.escape(f.code)}</b>'
        f"<span>{html.escape(f.found)}\n<i>{html.escape(f.advice)}</i></span></li>"
        for f in findings
        if f.result != "passed"
    )
    good = [[f.code, f.title] for f in findings if f.result == "passed"]
    body = f'<ol class="kd-list kd-checks">{rows}</ol>' if rows else ""
    if good:
        passed = f"<summary>{len(good)} checks passed</summary>{page.table([], good)}"
        body += f"<details>{passed}</details>"
    return [Card("Checks", body)] if body else []
