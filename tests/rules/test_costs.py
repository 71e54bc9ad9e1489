"""The dearest tests are in the table of `make costs`, and each says why it is dear."""

import csv

from cpu_seconds import COLUMNS, DEAR_CPU_S, KEPT
from rules import house, suite

COSTS = house.ROOT / "tests" / "costs.csv"


def costs():
    with COSTS.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_dearest_tests_are_known():
    rows = costs()
    spent = [float(row["cpu_s"]) for row in rows]
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == KEPT
    assert spent == sorted(spent, reverse=True)


def test_what_is_dear_says_why():
    for row in costs():
        name = row["test"].split("[")[0]
        assert name in suite.cases(), f"{name}: no such test"
        if float(row["cpu_s"]) > DEAR_CPU_S:
            assert suite.cases()[name].reasons(), f"{name} takes {row['cpu_s']} CPU s: why?"
