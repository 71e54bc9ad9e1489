import os

import pytest
from strangers import NOBODY, Stranger, Thief


@pytest.fixture
def strangers(tmp_path_factory):
    """Makes one: of another user where this one may become it, else of the same."""
    made = []

    def make(user=NOBODY):
        user = user if os.getuid() == 0 else None
        made.append(Stranger(user, tmp_path_factory.mktemp("stranger")))
        return made[-1]

    yield make
    for stranger in made:
        stranger.close()


@pytest.fixture
def thief():
    made = Thief()
    yield made
    if made.process.poll() is None:
        made.end()
