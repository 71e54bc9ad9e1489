import re

from kdlab.report import chart, page
from kdlab.report.chart import Panel

EVIL = '<img src=x onerror="alert(1)">'


def test_curves_of_one_group_share_a_colour_and_lines_are_named():
    panel = Panel(
        "loss",
        {
            "a · seed0": [(0, 1.0), (2, 0.5)],
            "a · seed1": [(0, 2.0), (2, 1.0)],
            "b": [(1, 1)],
        },
        {"ut": [(0, 3.0)]},
        "seconds",
    )
    drawn = chart.svg([panel])
    colours = re.findall(r'<polyline fill="none" stroke="(#\w+)" stroke-width', drawn)
    assert colours[0] == colours[1] != colours[2]
    assert "ut 3" in drawn
    assert "seconds" in drawn
    assert drawn.count("<polyline") == 3 + 1  # and the level


def test_names_that_do_not_fit_beside_a_title_stand_above():
    names = [f"a rather long name of a curve, number {k}" for k in range(5)]
    few = chart.svg([Panel("loss", {names[0]: [(0, 1), (1, 2)]})])
    many = chart.svg([Panel("loss", {name: [(0, 1), (1, 2)] for name in names})])

    def height(drawn):
        return int(re.search(r'height="(\d+)"', drawn)[1])

    assert height(many) > height(few)
    assert all(drawn.count(names[0]) >= 1 for drawn in (few, many))


def test_not_finite_values_and_nothing_at_all():
    drawn = chart.svg([Panel("loss", {"a": [(0, float("nan")), (1, 2.0)]}), Panel("x", {})])
    assert "nan" not in drawn
    assert "nothing yet" in drawn


def test_everything_is_escaped():
    shown = chart.svg([Panel(EVIL, {EVIL: [(0, 1)]}, {EVIL: [(0, 1.0)]}, EVIL)])
    shown += (
        page.table([EVIL], [[EVIL]]) + page.whole(EVIL, "") + page.image("<svg/>", EVIL)
    )
    assert "<img src=x" not in shown
    assert page.markdown("a|b <i> [x](y)") == r"a\|b \<i\> \[x\]\(y\)"


def test_one_point_is_seen():
    assert chart.svg([Panel("loss", {"a": [(0, 1.0)]})]).count("<circle") == 1
