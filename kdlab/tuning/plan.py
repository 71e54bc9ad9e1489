"""How a sweep runs: parallel trials, devices, shared pools."""

import os

import torch

from kdlab.experiment.spec import ExperimentSpec
from kdlab.tuning.space import Space
from kdlab.tuning.spec import SweepSpec

# Keys that decide which teacher a pool serves, and how it is measured.
_POOL_KEYS = (
    *("data", "teacher", "teacher_pool", "method"),
    *("train.batch", "soft_labels.inputs", "soft_labels.sends", "features"),
)


def jobs_of(spec: SweepSpec, space: Space) -> int:
    """Return the number of parallel trials, at most the number of devices.

    On a cluster: `jobs`, or one; its scheduler knows the workers.
    """
    if spec.workers is not None:
        return spec.jobs or 1
    limit = devices(space)
    if spec.jobs is not None:
        return min(spec.jobs, limit)
    threads = 1
    if isinstance(space.base, ExperimentSpec) and not _on_gpus(space):
        threads = space.base.train.threads or 1
    return max(1, limit // threads)


def devices(space: Space) -> int:
    """Count GPUs if trials use them, else CPU cores."""
    if _on_gpus(space):
        return max(1, torch.cuda.device_count())
    return len(os.sched_getaffinity(0))


def described(space: Space) -> str | None:
    """Return the source that a trial's result describes; None where there is only one."""
    base = space.base
    if isinstance(base, ExperimentSpec) and len(base.sources()) > 1:
        return base.described()
    return None


def gpus() -> tuple[str, ...]:
    """Return the names of visible GPUs, as in CUDA_VISIBLE_DEVICES."""
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(count))
    return tuple(name.strip() for name in names)[:count]


def _on_gpus(space: Space) -> bool:
    base = space.base
    return isinstance(base, ExperimentSpec) and base.train.chosen_device() != "cpu"


def shares_pool(spec: SweepSpec, space: Space) -> bool:
    """Return whether one pool can serve all trials."""
    base = space.base
    if not spec.share_pool or not isinstance(base, ExperimentSpec):
        return False
    if base.teacher_pool is None or base.teacher_pool.external:
        return False  # a running pool is shared anyway
    has_chaos = base.chaos is not None  # it hits the teachers of one run
    if has_chaos or not base.method.one_student or spec.workers is not None:
        return False
    if any(_overlap(key, part) for key in spec.space for part in _POOL_KEYS):
        return False
    return any(m.source.needs_teacher == "served" for m in base.members())


def _overlap(key: str, part: str) -> bool:
    return key == part or key.startswith(f"{part}.") or part.startswith(f"{key}.")
