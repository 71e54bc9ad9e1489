"""Cores and memory as a cgroup or an affinity gives them."""

import os

import pytest

from kdlab.cluster import limits


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_", ".", 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))
        return tmp_path

    monkeypatch.setattr(limits, "_ROOT", tmp_path)
    return write


def test_no_more_threads_than_the_quota(cgroup):
    everything = len(os.sched_getaffinity(0))
    assert limits.usable_cores() == everything
    cgroup(cpu_max="max 100000")
    assert limits.usable_cores() == everything
    cgroup(cpu_max="50000 100000")
    assert limits.usable_cores() == 1  # half a core is one thread


def test_no_more_memory_than_the_cgroup_gives(cgroup):
    free = limits.free_memory()
    cgroup(memory_max="max", memory_current=10)
    assert limits.free_memory() > free / 2
    cgroup(memory_max=5_000_000, memory_current=2_000_000)
    assert limits.free_memory() == 3_000_000
    cgroup(memory_max=1_000_000, memory_current=2_000_000)
    assert limits.free_memory() == 0


def test_the_older_cgroups_too(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("4000000")
    (tmp_path / "memory/memory.usage_in_bytes").write_text("1000000")
    assert limits.free_memory() == 3_000_000
    (tmp_path / "memory/memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert limits.free_memory() > 3_000_000
