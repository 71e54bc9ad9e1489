"""Resources that this process may use, by affinity, cgroup and free memory."""

import os
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # version 1 of cgroups writes "no limit" as a number near 2^63


def usable_cores() -> int:
    """CPU cores of the affinity (SLURM, taskset), at most those of the quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, min(cores, int(quota))) if quota is not None else cores


def free_memory() -> int:
    """Bytes of memory that the system has free, at most those that the cgroup has left."""
    free = int(psutil.virtual_memory().available)
    left = _left_of_cgroup()
    return free if left is None else max(0, min(free, left))


def _cgroup_file(name: str) -> str | None:
    """Text of a file of this process's cgroup, version 2, or of the root in a container."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().split("::", 1)[-1].lstrip("/")
    except OSError:
        return None
    for folder in (_ROOT / group, _ROOT):
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
    return None


def _version1_number(name: str) -> int | None:
    """A number of a cgroup of version 1."""
    try:
        return int((_ROOT / name).read_text())
    except (OSError, ValueError):
        return None


def _quota() -> float | None:
    """CPU cores of the cgroup; None where there is no limit."""
    limit = _cgroup_file("cpu.max")
    if limit is not None:
        quota, period = limit.split()
        return None if quota == "max" else float(quota) / float(period)
    quota_us = _version1_number("cpu/cpu.cfs_quota_us")
    period_us = _version1_number("cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _left_of_cgroup() -> int | None:
    """Bytes until the cgroup's limit; None where there is none."""
    most, used = _cgroup_file("memory.max"), _cgroup_file("memory.current")
    if most is not None and used is not None:
        return None if most == "max" else int(most) - int(used)
    limit = _version1_number("memory/memory.limit_in_bytes")
    taken = _version1_number("memory/memory.usage_in_bytes")
    if limit is None or taken is None or limit > _NO_LIMIT:
        return None
    return limit - taken
