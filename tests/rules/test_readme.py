"""Which unit tests stand for a whole one: the table of tests/README.md."""

import re
from dataclasses import dataclass

import pytest
from rules import house, suite

README = house.ROOT / "tests" / "README.md"
NAME = re.compile(r"tests/[\w/.]+\.py::\w+(?:::\w+)*")
# What is nightly without a unit test that says the same: it says little more than what stays.
WITHOUT = re.compile(r"\b(storm|bench|second value)\b")


@dataclass(frozen=True)
class Replaced:
    whole: str
    twins: tuple[str, ...]
    why: str


def replaced(text):
    """Rows of the table."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|", 2)]
        if line.startswith("|") and NAME.search(cells[0]):
            whole, twins, why = (*cells, "", "")[:3]
            yield Replaced(*NAME.findall(whole), tuple(NAME.findall(twins)), why)


def nightly(case):
    """All of it, or single values of its parameters."""
    return any(mark.name == "nightly" for mark in (*case.always, *case.for_some))


def faults(row, cases):
    """What does not hold of a row."""
    named = [row.whole, *row.twins, *NAME.findall(row.why)]
    if missing := [name for name in named if name not in cases]:
        return [f"{name}: no such test" for name in missing]
    found = [] if nightly(cases[row.whole]) else [f"{row.whole} is not nightly"]
    found += [f"{twin} is nightly, too" for twin in row.twins if cases[twin].has("nightly")]
    if not row.twins and not WITHOUT.search(row.why):
        found.append(f"{row.whole} has no twin")
    return found


def test_what_left_ci_is_said_by_tests_that_did_not():
    rows = list(replaced(README.read_text()))
    assert [fault for row in rows for fault in faults(row, suite.cases())] == []
    assert len({row.whole for row in rows}) == len(rows)


def test_whatever_is_nightly_stands_in_the_table():
    rows = {row.whole for row in replaced(README.read_text())}
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
    ("line", "said"),
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
def test_a_row_is_checked(line, said):
    (row,) = replaced(f"| whole test | unit twins | what |\n{line}\n")
    assert faults(row, {A: case(A, "slow nightly"), B: case(B)}) == said


def test_a_second_value_may_be_nightly_alone():
    (row,) = replaced(f"| {A} | | second value, {B} stays |")
    assert not faults(row, {A: case(A, "slow", "nightly"), B: case(B)})
    assert faults(row, {A: case(A, "slow"), B: case(B)}) == [f"{A} is not nightly"]
