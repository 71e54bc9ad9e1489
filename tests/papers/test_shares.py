import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.shares import shared_rows


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 500))
def test_all_rows_once_and_at_least_one_each(shares, more):
    rows = shared_rows(len(shares) + more, shares)
    assert sum(rows) == len(shares) + more
    assert min(rows) >= 1


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_rows_that_are_shared_again_stay_as_they_are(rows):
    assert shared_rows(sum(rows), rows) == tuple(rows)


def test_in_proportion():
    assert shared_rows(64, [1, 1]) == (32, 32)
    assert shared_rows(256, [1, 1, 1]) == (86, 85, 85)  # Pipe-BD's code drops one: 255
    assert shared_rows(64, [3, 1]) == (48, 16)
    assert shared_rows(3, [1, 1]) == (2, 1)
    assert shared_rows(3, [1000.0, 1.0, 1.0]) == (1, 1, 1)


def test_refuses_what_cannot_be_shared():
    with pytest.raises(ValueError, match="cannot share 1 rows"):
        shared_rows(1, [1, 1])
    with pytest.raises(ValueError, match="cannot share"):
        shared_rows(4, [1, 0])
