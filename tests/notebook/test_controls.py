"""Orders of a page, which may send anything, and the sliders that it draws."""

import math

import pytest

from kdlab.changes.tunable import Tunable
from kdlab.config import Range
from kdlab.errors import BadInput
from kdlab.notebook.controls import Controls, dial, standing_changes
from kdlab.notebook.live_widget import LiveWidget


@pytest.fixture
def page():
    return LiveWidget("r", "", lambda: None)


@pytest.fixture
def orders(page):
    """The orders that were carried out, of the buttons that the page has."""
    done = []

    def refused(order):
        raise BadInput("There is no <b>teacher</b>.")

    def disk(order):
        raise OSError("no space left")

    actions = {"stop": done.append, "set": done.append, "kill": refused, "save": disk}
    Controls(page, actions).show(["stop"])
    return done


def press(page, **order):
    page._receive(page, {"kind": "order", **order}, [])


def test_an_order_is_carried_out_and_answered(page, orders):
    press(page, do="stop")
    press(page, do="set", values={"lr_factor": 2})
    assert [order.do for order in orders] == ["stop", "set"]
    assert orders[1].values == {"lr_factor": 2.0}
    assert page.controls["reply"] == [2, "plain", "requested: set"]
    assert page.controls["buttons"] == ["stop"]


@pytest.mark.parametrize(
    "order",
    [
        {}, {"do": 1}, {"do": "fire"}, {"do": "stop" * 100}, {"do": "stop", "name": "x" * 999},
        {"do": "set", "values": {"a": "1"}}, {"do": "set", "values": {"a": None}},
        {"do": "set", "values": {"a": math.nan}}, {"do": "set", "values": {"a": math.inf}},
        {"do": "set", "values": {"a": True}}, {"do": "set", "values": [1]},
        {"do": "set", "values": {f"a{k}": 1 for k in range(51)}},
        {"do": "set", "values": {"a" * 999: 1}},
    ],
)  # fmt: skip
def test_what_no_button_would_say_is_refused(page, orders, order):
    press(page, **order)
    assert orders == []
    assert page.controls["reply"][:2] == [1, "bad"]


@pytest.mark.parametrize(("do", "words"), [("kill", "no <b>teacher"), ("save", "no space")])
def test_what_cannot_be_done_is_said(page, orders, do, words):
    press(page, do=do)
    assert words in page.controls["reply"][2]


def test_a_page_that_only_watches_takes_no_orders(page):
    press(page, do="stop")
    assert page.controls == {}


@pytest.mark.parametrize(
    ("value", "limits", "ends", "log"),
    [
        (1.0, {"gt": 0, "le": 100}, (0.01, 10.0), True),
        (4.0, {"gt": 0}, (0.04, 40.0), True),
        (300.0, {"gt": 0, "le": 400}, (3.0, 400.0), True),
        (3.0, {"gt": 2, "le": 4}, (2.01, 4.0), False),
        (0.5, {"ge": 0}, (0.0, 2.0), False),
        (0.5, {"ge": 0, "le": 1}, (0.0, 1.0), False),
        (0.0, {}, (0.0, 1.0), False),
        (-2.0, {}, (-8.0, 8.0), False),
        (1.0, {"gt": -1}, (-0.975, 4.0), False),
    ],
)
def test_a_slider_reaches_around_what_it_began_with(value, limits, ends, log):
    slider = dial(Tunable(name="loss.x", value=value, range=Range(**limits)), 7.0)
    assert (slider["low"], slider["high"]) == pytest.approx(ends)
    assert (slider["log"], slider["value"]) == (log, 7.0)


@pytest.mark.parametrize(
    ("settings_set", "standing"),
    [
        ([], []),
        ([{"a": 2.0}], [{"a": 1.0}]),
        ([{"a": 2.0}, {"a": 3.0}], [{"a": 1.0}, {"a": 2.0}]),
        ([{"a": 2.0}, {"a": 3.0}, {"a": 2.0}], [{"a": 1.0}]),  # gone back once
        ([{"a": 2.0}, {"a": 3.0}, {"a": 2.0}, {"a": 1.0}], []),
        ([{"a": 2.0}, {"a": 2.0}], [{"a": 1.0}]),  # of two local models
        ([{"a": 2.0, "b": 5.0}, {"b": 6.0}], [{"a": 1.0, "b": 0.0}, {"b": 5.0}]),
        ([{"unknown": 2.0}], []),
    ],
)
def test_each_change_that_stands_can_be_taken_back(settings_set, standing):
    assert standing_changes(settings_set, {"a": 1.0, "b": 0.0}) == standing
