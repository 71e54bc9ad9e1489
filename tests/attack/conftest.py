import os

import pytest
from strangers import NOBODY, Stranger, Thief


@pytest.fixture
def strangers(tmp_path_factory):
    """Makes one: of another user where this one may become it, else of the same."""
    strangers = []

    def make(user=NOBODY):
        user = user if os.getuid() == 0 else None
        strangers.append(Stranger(user, tmp_path_factory.mktemp("stranger")))
        return strangers[-1]

    yield make
    for stranger in strangers:
        stranger.close()


@pytest.fixture
def thief():
    thief = Thief()
    yield thief
    if thief.process.poll() is None:
        thief.end()
