"""A pool that this machine cannot hold is refused; one that it can starts in small groups."""

import pytest

from kdlab.cluster import local_pool
from kdlab.cluster.local_pool import LocalPool
from kdlab.errors import BadInput


@pytest.fixture
def machine(monkeypatch):
    """Four cores, 8 GB free."""
    monkeypatch.setattr(local_pool, "usable_cores", lambda: 4)
    monkeypatch.setattr(local_pool, "free_memory", lambda: 8e9)


@pytest.mark.parametrize("spec", [{"teachers": 100_000}, {"teachers": 2, "most": 21}])
def test_more_teachers_than_a_machine_can_hold_are_refused(machine, spec):
    with pytest.raises(BadInput, match=r"at most 64 share 4 cores .* 20 fit into 8\.0 GB"):
        LocalPool(**spec).check()


def test_what_it_can_hold_is_taken(machine):
    LocalPool(teachers=20).check()


def test_the_refusal_comes_before_anything_starts(kdlab_cli, elsewhere):
    code, _, err = kdlab_cli("run", "smoke/served", "teacher_pool.teachers=100000")
    assert code == 2
    assert "100,000 teachers are more than this machine can hold" in err
    assert not (elsewhere / "runs").exists()
