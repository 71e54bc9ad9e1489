"""Pictures of a study: which are drawn, what settings explain, and one that cannot be."""

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import create_trial
from small_sweeps import TRAINED, searched

from kdlab.tuning import figures

RANGE = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}


def study(values, directions=("maximize",), **more):
    search = optuna.create_study(directions=list(directions))
    for number, value in enumerate(values):
        params = {"x": number / len(values), "y": (number * 7 % 10) / 10}
        facts = {"values": [value] * len(directions), "distributions": RANGE, **more}
        search.add_trial(create_trial(params=params, **facts))
    return search


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Names of the pictures that would be drawn: drawing them is Optuna's work."""
    monkeypatch.setattr(
        figures, "_draw_one", lambda name, make, folder, emit: folder / f"{name}.png"
    )

    def draw(of, **changes):
        spec = searched(TRAINED, **changes).spec
        return {path.stem for path in figures.draw(of, spec, tmp_path / "f", print)}

    return draw


ALWAYS = {"history", "slice", "timeline"}


def test_what_says_nothing_is_not_drawn(drawn):
    assert drawn(study([1.0])) == ALWAYS
    assert drawn(study([1.0, 1.0, 1.0])) == ALWAYS  # all are alike
    assert drawn(study([1.0, 2.0])) == ALWAYS | {"importance", "contour"}


def test_one_setting_has_no_contour_and_two_objectives_have_a_front(drawn):
    setting = {"space": {"train.lr": {"low": 0.1, "high": 0.5}}}
    assert drawn(study([1.0, 2.0]), **setting) == ALWAYS | {"importance"}
    objectives = {"objectives": [{"metric": "validation_top1"}, {"metric": "wall_seconds"}]}
    names = drawn(study([1.0, 2.0], ("maximize", "minimize")), **objectives)
    assert names == ALWAYS | {"importance", "contour", "pareto"}


def test_curves_of_trials_are_drawn_where_they_were_watched(drawn):
    watched = study([1.0, 2.0], intermediate_values={1: 0.5})
    assert "intermediate" in drawn(watched)


def test_a_picture_that_cannot_be_drawn_is_a_note(tmp_path):
    notes = []

    def broken():
        raise ZeroDivisionError("of nothing")

    assert figures._draw_one("slice", broken, tmp_path, notes.append) is None
    assert [note.message for note in notes] == ["Could not plot slice: of nothing"]


def test_a_picture_is_a_file(tmp_path):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    def two():
        return pyplot.subplots(1, 2)[1]

    path = figures._draw_one("slice", two, tmp_path, print)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []


def test_the_setting_that_good_trials_have_in_common_is_the_important_one():
    growing = study([number / 20 for number in range(20)])  # grows with x, whatever y is
    shares = figures.importance(growing)
    assert shares["x"] > shares["y"]
    both = study([number / 20 for number in range(20)], ("minimize", "minimize"))
    assert figures.importance(both).keys() == {"x", "y"}


def test_few_trials_or_all_alike_say_nothing():
    assert figures.importance(study([])) == {}
    assert figures.importance(study([float(k) for k in range(9)])) == {}
    assert figures.importance(study([1.0] * 12)) == {}
