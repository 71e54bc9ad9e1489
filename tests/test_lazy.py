"""A lazy module is imported by the first that is asked of it."""

import copy
import sys

import pytest

from kdlab.lazy import lazy


def test_it_is_imported_when_something_of_it_is_asked_for(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    colours = lazy("colorsys")
    assert "colorsys" not in sys.modules
    assert colours.rgb_to_hsv(0.0, 0.0, 1.0) == (2 / 3, 1.0, 1.0)
    assert "colorsys" in sys.modules


def test_what_is_not_there_is_said_when_it_is_needed():
    nowhere = lazy("no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        _ = nowhere.anything


def test_a_copy_is_the_same_library():
    assert copy.deepcopy(lazy("colorsys")).rgb_to_hsv(0.0, 0.0, 1.0) == (2 / 3, 1.0, 1.0)
