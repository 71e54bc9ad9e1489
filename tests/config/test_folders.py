"""Paths as users write them."""

from pathlib import Path

import pytest

from kdlab.config.folders import user_path
from kdlab.errors import BadInput


def test_a_home_is_put_in(monkeypatch, elsewhere):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert user_path("~/x.html") == Path("/home/somebody/x.html")
    assert user_path("") == Path()
    (elsewhere / "~nobodyxyz").touch()
    assert user_path("~nobodyxyz") == Path("~nobodyxyz")
    assert user_path("a/" + "x" * 255) == Path("a", "x" * 255)


@pytest.mark.parametrize(
    "place", ["a/" + "x" * 256, "é" * 128, "x\0y", "~nobodyxyz", "~nobodyxyz/x"]
)
def test_a_name_that_no_file_can_have_is_refused(place):
    with pytest.raises(BadInput, match="is no path"):
        user_path(place)
