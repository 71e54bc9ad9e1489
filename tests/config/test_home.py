"""The cache folder: created where it can be, and refused by its variable where it cannot."""

import pytest

from kdlab.config.home import home
from kdlab.errors import BadInput


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/no_such_folder"])
def test_a_cache_folder_that_cannot_be_created_names_its_variable(
    elsewhere, monkeypatch, place
):
    (elsewhere / "file").touch()
    monkeypatch.setenv("KDLAB_HOME", place)
    with pytest.raises(BadInput, match=r"cannot be created: .*\. Set KDLAB_HOME"):
        home()
