"""What this process may use of its machine: by affinity, by its cgroup, by what is free."""

import os
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # version 1 says "none" with a number near 2^63


def usable_cores() -> int:
    """CPU cores: those of the affinity (SLURM, taskset), and no more than the quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, min(cores, int(quota))) if quota is not None else cores


def free_memory() -> int:
    """Bytes: what the system has free, and no more than the cgroup still gives."""
    free = int(psutil.virtual_memory().available)
    left = _left_of_cgroup()
    return free if left is None else max(0, min(free, left))


def _own(name: str) -> str | None:
    """A file of this process's cgroup, version 2, or of the root as containers see it."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().split("::", 1)[-1].lstrip("/")
    except OSError:
        return None
    for folder in (_ROOT / own, _ROOT):
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
    return None


def _old(name: str) -> int | None:
    """A number of version 1."""
    try:
        return int((_ROOT / name).read_text())
    except (OSError, ValueError):
        return None


def _quota() -> float | None:
    """CPU cores of the cgroup; None where there is no limit."""
    said = _own("cpu.max")
    if said is not None:
        quota, period = said.split()
        return None if quota == "max" else float(quota) / float(period)
    used, of = _old("cpu/cpu.cfs_quota_us"), _old("cpu/cpu.cfs_period_us")
    return used / of if used is not None and of and used > 0 else None


def _left_of_cgroup() -> int | None:
    """Bytes until the cgroup's limit; None where there is none."""
    most, used = _own("memory.max"), _own("memory.current")
    if most is not None and used is not None:
        return None if most == "max" else int(most) - int(used)
    limit = _old("memory/memory.limit_in_bytes")
    taken = _old("memory/memory.usage_in_bytes")
    if limit is None or taken is None or limit > _NO_LIMIT:
        return None
    return limit - taken
