"""The harness of all benches: turns, goals, and processes that return results."""

import csv
import importlib

import pytest

from benchmarks import harness
from benchmarks.harness import Pulse, Scratch, check_parts, in_turns, of_parts, report
from kdlab.config import evidence
from kdlab.errors import BadInput, ClusterError
from kdlab.report.figures import figure

CHILD = """
from kdlab.supervision.children import announce

def ten_times(number: int) -> int:
    if number == 2:
        raise SystemExit("it was the second")
    announce(say=f"{number} began")
    return 10 * number
"""


def test_turns_go_forth_and_back_and_the_first_may_be_for_warming_up():
    order, lines = [], []
    works = {
        name: lambda name=name: float(order.append(name) or len(order)) for name in "abc"
    }
    values = in_turns(works, 2, lines.append, "ms", warm_up=1)
    assert "".join(order) == "abccbaabc"
    assert values == {"a": [6.0, 7.0], "b": [5.0, 8.0], "c": [4.0, 9.0]}
    assert lines == ["1/2: a 6, b 5, c 4 ms", "2/2: a 7, b 8, c 9 ms"]


def test_where_nothing_is_said_for_long_what_goes_on_is():
    lines, now = [], [0.0]
    pulse = Pulse(lines.append, lambda: now[0])
    for second in range(20):
        now[0] = float(second)
        if second == 1:
            pulse.does("8 steps of dp")
        if second == 12:
            pulse.say("done")
        pulse.beat()
    assert lines == ["8 steps of dp, for 7 s", "done"]
    now[0] = 20.0
    pulse.beat()
    assert lines[-1] == "8 steps of dp, for 19 s"


def goals(name, *names):
    return {
        f["name"]: (f["goal"], f["holds"]) for f in report(name, list(names))["figures"]
    }


def test_a_figure_has_the_goal_of_its_bench_or_its_claim():
    promised = goals(
        "edl_dist",
        figure("served_over_memory/reference/32", 0.96, "ratio"),
        figure("served_over_memory/reference/32/5ms", 0.96, "ratio"),  # no goal: one case
        figure("volume_over_ut_max", [0.5, 0.9, 3.0], "ratio"),
    )
    assert promised == {
        "served_over_memory/reference/32": (">= 0.97", False),
        "served_over_memory/reference/32/5ms": (None, None),
        "volume_over_ut_max": ("<= 1", True),  # the median
    }
    assert goals("peers", figure("served_over/timm", 1.5, "times")) == {
        "served_over/timm": (">= 1", True)
    }
    gain = figure("labels_per_s_over_eager/resnet20_32", 1.2, "ratio")
    assert goals("teacher", gain)[gain["name"]] == (">= 1.5", False)
    between = figure("predicted_over_measured/nas", 0.95, "ratio")
    assert goals("pipe_bd", between)[between["name"]] == ("0.9 to 1.1", True)


def test_every_goal_is_of_a_bench_that_there_is():
    with harness._ROWS.open(newline="") as file:
        names = {line["name"] for line in csv.DictReader(file)}
    benches = {name.removeprefix("bench/") for name in names if name.startswith("bench/")}
    assert benches
    for name in benches:
        assert (evidence.folder() / f"{name}.py").is_file()


def test_parts_are_measured_in_their_order():
    parts = {name: lambda name=name: [figure(name, 1.0, "s")] for name in ("one", "two")}
    measured = of_parts("data", parts, ["two", "one"])
    assert [f["name"] for f in measured["figures"]] == ["one", "two"]
    with pytest.raises(BadInput, match="bench data has no part three; it has one, two"):
        check_parts("data", parts, ["three"])


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Call a function in a process for each number; return results and lines."""
    (tmp_path / "told_numbers.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)
    ten_times, lines = importlib.import_module("told_numbers").ten_times, []

    def ask(*numbers):
        with Scratch() as scratch:
            each = [{"number": number} for number in numbers]
            results = scratch.results(
                ten_times, each, at_once=2, patience_s=60, say=lines.append
            )
            return results, sorted(lines)

    return ask


@pytest.mark.processes
def test_processes_say_what_they_found(asked):
    results, lines = asked(1, 3, 5)
    assert results == [10, 30, 50]
    assert lines == ["1 began", "3 began", "5 began"]


@pytest.mark.processes
def test_how_many_are_done_is_said_in_silences(asked, monkeypatch):
    monkeypatch.setattr(harness, "_SILENT_S", 0.0)  # all the time
    _, lines = asked(1, 3, 5)
    assert {line.split(",")[0] for line in lines} & {"1 of 3 done", "2 of 3 done"}


@pytest.mark.processes
def test_one_that_ends_before_it_is_done_ends_all(asked):
    with pytest.raises(
        ClusterError, match=r"ended before it was done(.|\n)*it was the second"
    ):
        asked(1, 2, 3)
