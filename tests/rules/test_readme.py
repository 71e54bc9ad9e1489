"""Which unit tests stand for a whole one: the table of tests/README.md."""

import re
from dataclasses import dataclass

import pytest
from rules import house, suite

README = house.ROOT / "tests" / "README.md"
NAME = re.compile(r"tests/[\w/.]+\.py::\w+(?:::\w+)*")
# Reasons to be nightly without a unit test of the same: it shows little more than the rest.
WITHOUT = re.compile(r"\b(storm|bench|second value)\b")


@dataclass(frozen=True)
class Replaced:
    test: str
    twins: tuple[str, ...]
    why: str


def replaced(text):
    """Rows of the table."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|", 2)]
        if line.startswith("|") and NAME.search(cells[0]):
            test, twins, why = (*cells, "", "")[:3]
            yield Replaced(*NAME.findall(test), tuple(NAME.findall(twins)), why)


def nightly(case):
    """Tell if a test is nightly, or single values of its parameters are."""
    return any(mark.name == "nightly" for mark in (*case.always, *case.for_some))


def faults(row, cases):
    """List what is wrong with a row of the table."""
    named = [row.test, *row.twins, *NAME.findall(row.why)]
    if missing := [name for name in named if name not in cases]:
        return [f"{name}: no such test" for name in missing]
    wrong = [] if nightly(cases[row.test]) else [f"{row.test} is not nightly"]
    wrong += [f"{twin} is nightly, too" for twin in row.twins if cases[twin].has("nightly")]
    if not row.twins and not WITHOUT.search(row.why):
        wrong.append(f"{row.test} has no twin")
    return wrong


def test_what_left_ci_is_said_by_tests_that_did_not():
    rows = list(replaced(README.read_text()))
    assert [fault for row in rows for fault in faults(row, suite.cases())] == []
    assert len({row.test for row in rows}) == len(rows)


def test_whatever_is_nightly_stands_in_the_table():
    rows = {row.test for row in replaced(README.read_text())}
    missing = {case.name for case in suite.cases().values() if nightly(case)} - rows
    assert sorted(missing) == []


A, B, C = (
    "tests/a/test_a.py::test_whole",
    "tests/b/test_b.py::test_part",
    "tests/b.py::test_x",
)


def case(name, always="", for_some=""):
    marks = [tuple(suite.Mark(m) for m in words.split()) for words in (always, for_some)]
    return suite.Case(name, None, *marks)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"| {A} | {B} | the order of calls |", []),
        (f"| `{A}` | `{B}`, `{C}` | the order of calls |", [f"{C}: no such test"]),
        (f"| {A} | | storm |", []),
        (f"| {A} | - | bench |", []),
        (f"| {A} | | it is long |", [f"{A} has no twin"]),
        (f"| {B} | {A} | x |", [f"{B} is not nightly", f"{A} is nightly, too"]),
        (f"| {A} | | second value, {C} stays |", [f"{C}: no such test"]),
    ],
)
def test_a_row_is_checked(line, expected):
    (row,) = replaced(f"| whole test | unit twins | what |\n{line}\n")
    assert faults(row, {A: case(A, "slow nightly"), B: case(B)}) == expected


def test_a_second_value_may_be_nightly_alone():
    (row,) = replaced(f"| {A} | | second value, {B} stays |")
    assert not faults(row, {A: case(A, "slow", "nightly"), B: case(B)})
    assert faults(row, {A: case(A, "slow"), B: case(B)}) == [f"{A} is not nightly"]
