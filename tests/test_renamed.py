"""Old public names answer for one version, and name the new one."""

import pytest

from kdlab.methods import api
from kdlab.papers.edl_dist import hybrid_schedule


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (api, "plain", "to_builtins"),
        (api, "typed", "from_builtins"),
        (hybrid_schedule, "Level", "BufferState"),
    ],
)
def test_an_old_name_is_the_new_one_with_a_warning(module, old, new):
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        assert getattr(module, old) is getattr(module, new)


def test_a_name_that_never_was_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'Levels'"):
        hybrid_schedule.Levels  # noqa: B018
