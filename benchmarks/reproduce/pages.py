"""Numbers of kept results in README and docs: tables are printed, sentences are checked.

A table stands between `<!-- results: NAME "quantity" ... -->` and `<!-- end of results -->`. A
number in a sentence is followed by `<!-- NAME "row" "quantity" -->`, with `mean`, `low`, `high` or
`simulated` at its end if the number is another one than the measured.

    python -m benchmarks.reproduce.pages README.md docs/*.md   # prints the tables again
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reproduce.command import kept_result, markdown_rows
from benchmarks.reproduce.freshness import changed_since

_TABLE = re.compile(
    r"(<!-- results: (\S+)((?: \"[^\"]+\")*) -->\n)(.*?)(<!-- end of results -->)",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(-?\d[\d,]*(?:\.\d+)?)(?:[ \w%×/-]{0,30})?\s?"
    r"<!-- (?!results:)(\S+) \"([^\"]+)\" \"([^\"]+)\"(?: (mean|low|high|simulated))? -->"
)
_MARK = re.compile(r"<!-- (?!results:)\S+ \"[^\"]+\" \"[^\"]+\"(?: \w+)? -->")


def tables(text: str) -> list[str]:
    """Return the names of the results whose tables a page has."""
    return [table[2] for table in _TABLE.finditer(text)]


def printed_again(text: str) -> str:
    """Return the page with each table printed from its result as it is now."""

    def rows(table: re.Match[str]) -> str:
        quantities = re.findall(r'"([^"]+)"', table[3])
        return f"{table[1]}{markdown_rows(kept_result(table[2]), quantities)}\n{table[5]}"

    return _TABLE.sub(rows, text)


def wrong_numbers(text: str) -> Iterator[str]:
    """Yield a message for each sentence whose number is not that of the result that it names.

    A number agrees if it is the kept one, rounded to as many digits.
    """
    checked = 0
    for mark in _NUMBER.finditer(text):
        checked += 1
        number, name, row, quantity, field = mark.groups()
        values = [
            line[field or "measured"]
            for line in kept_result(name)["rows"]
            if (line["row"], line["quantity"]) == (row, quantity)
        ]
        digits = len(number.partition(".")[2])
        kept_as = [f"{value:.{digits}f}" for value in values if value is not None]
        if number.replace(",", "") not in kept_as:
            yield f"{number} is said of {name} {row!r} {quantity!r}, which has {kept_as}"
    if (marks := len(_MARK.findall(text))) > checked:
        yield f"{marks - checked} of {marks} marks of results stand behind no number"


def greyed(text: str) -> str:
    """Return the page with tables of older code in a block that is shown grey."""

    def grey(table: re.Match[str]) -> str:
        if not changed_since(kept_result(table[2])):
            return table[0]
        return f'<div class="kd-older" markdown>\n\n{table[0]}\n\n</div>'

    return _TABLE.sub(grey, text)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        before = path.read_text(encoding="utf-8")
        if (now := printed_again(before)) != before:
            path.write_text(now, encoding="utf-8")
