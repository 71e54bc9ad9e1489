import base64
import re
from xml.etree import ElementTree

import pytest

from kdlab.report import chart, page
from kdlab.report.chart import Panel
from kdlab.report.page import Card, CardPage, Presentable

EVIL = '<img src=x onerror="alert(1)">'


def test_curves_of_one_group_share_a_colour_and_lines_are_named():
    panel = Panel(
        "loss",
        {
            "a · seed0": [(0, 1.0), (2, 0.5)],
            "a · seed1": [(0, 2.0), (2, 1.0)],
            "b": [(1, 1)],
        },
        {"ut": [(0, 3.0), (1, 2.0)]},
        "seconds",
    )
    (drawn,) = chart.drawings([panel])
    colours = re.findall(r'<polyline fill="none" stroke="(#\w+)" stroke-width', drawn)
    assert colours[0] == colours[1] != colours[2]
    assert "ut 2" in drawn
    assert "seconds" in drawn
    assert drawn.count("<polyline") == 3
    assert drawn.count("stroke-dasharray") == 1  # the level


def test_a_name_has_the_same_colour_in_every_panel():
    both = {"a": [(0, 1.0), (1, 2.0)], "b": [(0, 1.0), (1, 2.0)]}
    first, second = chart.drawings([Panel("loss", both), Panel("top-1", {"b": both["b"]})])
    (colour,) = set(re.findall(r'<polyline fill="none" stroke="(#\w+)"', second))
    assert re.findall(r'<polyline fill="none" stroke="(#\w+)"', first)[1] == colour


def height(drawn):
    return int(re.search(r'height="(\d+)"', drawn)[1])


def test_names_stand_beside_each_other_as_far_as_they_fit():
    names = [f"a rather long name of a curve, number {k}" for k in range(5)]
    two, many = (
        chart.drawings([Panel("loss", {name: [(0, 1), (1, 2)] for name in some})])[0]
        for some in (["a", "b"], names)
    )
    assert height(many) == height(two) + 4 * 16
    assert all(name in many for name in names)
    (single,) = chart.drawings([Panel("loss", {"loss": [(0, 1), (1, 2)]})])
    assert height(single) == height(two) - 16  # its title says it


def test_several_panels_in_one_picture_have_their_titles():
    curves = {"a": [(0, 1), (1, 2)]}
    panels = [Panel(f"panel {k}", curves, unit="%") for k in range(3)]
    drawn = chart.svg(panels)
    ElementTree.fromstring(drawn)
    assert [drawn.count(f"panel {k}, %") for k in range(3)] == [1, 1, 1]
    assert height(drawn) == 2 * (height(chart.drawings(panels)[0]) + 16)  # two and one
    ElementTree.fromstring(chart.svg([]))


def test_bars_lie_on_each_other():
    bars = {"right": [(0.0, 3.0), (50.0, 1.0)], "wrong": [(0.0, 1.0), (50.0, 0.0)]}
    (drawn,) = chart.drawings([Panel("Confidence", bars, bars=True)])
    boxes = re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" fill', drawn)
    (right, three), (_, low), (wrong, above), (_, none) = (map(float, box) for box in boxes)
    assert right == pytest.approx(wrong + above, abs=0.11)
    assert three == pytest.approx(3 * low)
    assert (above, none) == (low, 0.0)
    assert "polyline" not in drawn


def test_not_finite_values_and_nothing_at_all():
    drawn = chart.svg([Panel("loss", {"a": [(0, float("nan")), (1, 2.0)]}), Panel("x", {})])
    assert "nan" not in drawn
    assert "nothing yet" in drawn


def test_everything_is_escaped():
    panel = Panel(EVIL, {EVIL: [(0, 1)]}, {EVIL: [(0, 1.0)]}, EVIL, unit=EVIL)
    card_page = CardPage(EVIL, page.charts([panel]), [("good", EVIL)], EVIL)
    shown = chart.svg([panel]) + page.table([EVIL], [[EVIL]]) + page.lines([EVIL])
    shown += card_page.html() + card_page.page() + page.image("<svg/>", EVIL)
    assert "<img src=x" not in shown
    assert page.markdown("a|b <i> [x](y)") == r"a\|b \<i\> \[x\]\(y\)"


def test_one_point_is_seen():
    assert chart.svg([Panel("loss", {"a": [(0, 1.0)]})]).count("<circle") == 1


def test_a_page_of_its_own_asks_nobody_and_has_one_head(tmp_path):
    class Thing(Presentable):
        def document(self):
            cards = [Card("A", page.table(["k"], [[1]])), Card("", "b", wide=False)]
            return CardPage(
                "It", cards, [("warn", "Beware"), ("plain", "")], state="failed"
            )

    html = Thing().save(tmp_path / "it.html").read_text()
    assert html.startswith('<!doctype html>\n<html lang="en">')
    assert "default-src 'none'" in html
    assert 'name="viewport"' in html
    assert not re.search(r"""(src|href)=["']?http""", html)
    assert re.findall(r"<h\d[^>]*>[^<]*", html) == ["<h1>It", "<h2>A"]
    assert 'data-tone="warn">Beware</p>' in html
    assert html.count('kd-verdict" data-tone') == 1  # nothing is not said
    assert 'data-state="failed">failed<' in html
    assert "<script>" in html
    page.write(tmp_path / "odd.html", "\udcff.png")
    assert (tmp_path / "odd.html").read_text() == "\\udcff.png"
    cell = Thing()._repr_html_()
    assert "<script" not in cell
    assert re.findall(r"<(h\d|strong)>", cell) == ["strong", "h3"]
    assert cell.count('"kd-card kd-chart"') == 1


def test_without_its_style_it_reads_as_heads_tables_and_pictures():
    charts = page.charts([Panel("loss", {"a": [(0, 1), (1, 2)]})])
    cell = page.shown(
        Card("Results", page.table(["", "top-1 %"], [["a", "1.0 ± 0.5"]])), *charts
    )
    plain = re.sub(
        r"<style>.*?</style>| (class|style)=\"[^\"]*\"", "", cell, flags=re.DOTALL
    )
    assert "<h3>Results</h3><div><table><thead><tr><td></td><th>top-1 %</th></tr>" in plain
    assert "<td>1.0 ± 0.5</td>" in plain
    (picture,) = re.findall(r"base64,([^\"]+)", plain)
    ElementTree.fromstring(base64.b64decode(picture))
    assert page.table(["", ""], [["a", "b"]]).count("<th") == 0
