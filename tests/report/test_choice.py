"""Stand-ins of blocks, what models cost, and local models, as tables and pictures."""

from dataclasses import dataclass

import pytest
from PIL import Image

from kdlab.report.choice import choice_picture, choice_table
from kdlab.report.costs import HEAD, cost_rows, cost_table, times_smaller
from kdlab.report.local_curves import local_curves
from kdlab.report.round_errors import RoundErrors


@dataclass(frozen=True)
class Option:
    block: int
    name: str
    score: float
    latency_ms: float
    parameters: int


OPTIONS = [
    Option(0, "teacher", 0.0, 1.5, 12_000),
    Option(0, "skip", 0.25, 0.0, 0),
    Option(1, "separable", 0.0625, 0.5, 3_000),
]


def test_the_chosen_ones_are_marked_and_their_time_is_summed():
    lines = choice_table(OPTIONS, OPTIONS[::2]).split("\n")
    assert [line.split()[-1] for line in lines[2:5]] == ["chosen", "0", "chosen"]
    assert lines[2].split() == ["0", "teacher", "0.0000", "1.500", "12,000", "chosen"]
    assert lines[-1] == "chosen: teacher, separable; 2.000 ms by its parts"


@pytest.mark.parametrize(
    "options", [OPTIONS, OPTIONS[:1]]
)  # a score of 0 on a log axis, too
@pytest.mark.long
def test_the_picture_of_a_choice_is_drawn(options, tmp_path):
    choice_picture(options, options[:1], [(0.5, 0.3), (2.0, 0.1)], tmp_path / "p.png")
    assert Image.open(tmp_path / "p.png").size == (1080, 504)


SMALL = {"parameters": 1000, "megabytes": 0.5, "gflops": 0.0, "latency_ms": 2.0}
BIG = {"parameters": 8000, "megabytes": 4.0, "gflops": 1.5, "latency_ms": 5.0}


def test_a_student_is_so_many_times_smaller():
    assert times_smaller({"student": SMALL, "teacher": BIG}) == {
        "parameters": 8.0, "megabytes": 8.0, "latency_ms": 2.5,
    }  # fmt: skip
    assert times_smaller({"student": SMALL}) == {}


def test_costs_stand_below_each_other():
    student, teacher, times = cost_rows({"student": SMALL, "teacher": BIG})
    assert student == ["student", "1,000", "0.5", "0", "2"]
    assert teacher == ["teacher", "8,000", "4", "1.5", "5"]
    assert times == ["times smaller", "8", "8", "-", "2.5"]
    assert len(cost_rows({"student": SMALL})) == 1
    assert cost_table({"student": SMALL}).startswith(" ")
    assert all(word in cost_table({"student": SMALL}) for word in HEAD)


def errors(number, local, global_, compressed=()):
    return RoundErrors(
        round=number, iterations=10 * number, parallel_s=float(number), locals=local,
        global_=global_, compressed=list(compressed), chosen=local[0],
        validation_locals=local, validation_global=global_, local_losses=[1.0] * len(local),
        global_loss=1.0, models=list(range(len(local))),
    )  # fmt: skip


LOOKS = [
    errors(1, [30.0, 32.0], 28.0, [29.0, 30.0]),
    errors(2, [20.0, 24.0], 25.0),
    errors(3, [20.0], 19.0),  # a worker is lost
]


def test_eq_7_and_8_of_a_round():
    assert LOOKS[0].diff_lg == pytest.approx(3.0)
    assert LOOKS[0].diff_lc == pytest.approx(1.5)
    assert LOOKS[1].diff_lc is None


@pytest.mark.parametrize("looks", [LOOKS, LOOKS[2:]])
@pytest.mark.long
def test_local_models_are_drawn_with_and_without_a_compression(looks, tmp_path):
    local_curves(looks, tmp_path, "EC-DNN")
    assert Image.open(tmp_path / "curves.png").size == (840, 480)
    assert Image.open(tmp_path / "histograms.png").size == (1080, 420)


def test_bars_are_red_where_the_global_model_is_worse():
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    from kdlab.report import local_curves as module

    axes = Figure().subplots()
    module._bars(axes, [-2.0, 1.0, 1.5, 2.0], "points")
    seen = {to_hex(bar.get_facecolor()): 0 for bar in axes.patches}
    for bar in axes.patches:
        seen[to_hex(bar.get_facecolor())] += bar.get_height()
    assert seen == {"#c0392b": 1, "#2471a3": 3}
    empty = Figure().subplots()
    module._bars(empty, [], "points")
    assert [text.get_text() for text in empty.texts] == ["none"]
