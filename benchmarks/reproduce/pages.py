"""Numbers of kept results in README and docs: tables are printed, sentences are checked.

A table stands between `<!-- results: NAME "quantity" ... -->` and `<!-- end of results -->`. A
number in a sentence is followed by `<!-- NAME "row" "quantity" -->`, with `mean`, `low`, `high` or
`simulated` at its end where it is not what was measured.

    python -m benchmarks.reproduce.pages README.md docs/*.md   # prints the tables again
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reproduce.command import kept, markdown_rows
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
    """Names of the results whose tables a page has."""
    return [found[2] for found in _TABLE.finditer(text)]


def printed_again(text: str) -> str:
    """The page with each table as its result has it now."""

    def rows(found: re.Match[str]) -> str:
        quantities = re.findall(r'"([^"]+)"', found[3])
        return f"{found[1]}{markdown_rows(kept(found[2]), quantities)}\n{found[5]}"

    return _TABLE.sub(rows, text)


def wrong_numbers(text: str) -> Iterator[str]:
    """Sentences whose number is not that of the result that they name, in words.

    A number agrees if it is the kept one, rounded to as many digits.
    """
    checked = 0
    for found in _NUMBER.finditer(text):
        checked += 1
        said, name, row, quantity, field = found.groups()
        values = [
            one[field or "measured"]
            for one in kept(name)["rows"]
            if (one["row"], one["quantity"]) == (row, quantity)
        ]
        digits = len(said.partition(".")[2])
        kept_as = [f"{value:.{digits}f}" for value in values if value is not None]
        if said.replace(",", "") not in kept_as:
            yield f"{said} is said of {name} {row!r} {quantity!r}, which has {kept_as}"
    if (marks := len(_MARK.findall(text))) > checked:
        yield f"{marks - checked} of {marks} marks of results stand behind no number"


def greyed(text: str) -> str:
    """The page with its tables of older code in a block that is shown grey."""

    def grey(found: re.Match[str]) -> str:
        if not changed_since(kept(found[2])):
            return found[0]
        return f'<div class="kd-older" markdown>\n\n{found[0]}\n\n</div>'

    return _TABLE.sub(grey, text)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        before = path.read_text(encoding="utf-8")
        if (now := printed_again(before)) != before:
            path.write_text(now, encoding="utf-8")
