"""How a sweep is carried out: how many at a time, with one pool or several, told to whom."""

import os

import torch

from kdlab.experiment.spec import ExperimentSpec
from kdlab.tuning.space import Space
from kdlab.tuning.spec import SweepSpec

# What these are decides which teacher a pool serves, and how it is measured.
_OF_THE_POOL = (
    *("data", "teacher", "teacher_pool", "method"),
    *("train.batch", "soft_labels.inputs", "soft_labels.sends", "features"),
)


def jobs_of(spec: SweepSpec, space: Space) -> int:
    """Trials at a time: never more than there are devices.

    Of a cluster: what was asked for, or one; its scheduler knows the workers.
    """
    if spec.workers is not None:
        return spec.jobs or 1
    most = devices(space)
    if spec.jobs is not None:
        return min(spec.jobs, most)
    threads = 1
    if isinstance(space.base, ExperimentSpec) and not _on_gpus(space):
        threads = space.base.train.threads or 1
    return max(1, most // threads)


def devices(space: Space) -> int:
    """GPUs where trials use them, CPU cores elsewhere."""
    if _on_gpus(space):
        return max(1, torch.cuda.device_count())
    return len(os.sched_getaffinity(0))


def described(space: Space) -> str | None:
    """The source of soft labels that a trial's result is of, where there are several."""
    base = space.base
    if isinstance(base, ExperimentSpec) and len(base.sources()) > 1:
        return base.described()
    return None


def gpus() -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may name; those the user has left visible."""
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(count))
    return tuple(name.strip() for name in names)[:count]


def _on_gpus(space: Space) -> bool:
    base = space.base
    return isinstance(base, ExperimentSpec) and base.train.chosen_device() != "cpu"


def shares_pool(spec: SweepSpec, space: Space) -> bool:
    """Whether one pool can serve all trials."""
    base = space.base
    if not spec.share_pool or not isinstance(base, ExperimentSpec):
        return False
    if base.teacher_pool is None or base.teacher_pool.external:
        return False  # one of somebody else is shared by itself
    alone = base.chaos is not None  # it hits the teachers of one run
    if alone or not base.method.one_student or spec.workers is not None:
        return False
    if any(_touches(key, part) for key in spec.space for part in _OF_THE_POOL):
        return False
    return any(m.source.needs_teacher == "served" for m in base.members())


def _touches(key: str, part: str) -> bool:
    return key == part or key.startswith(f"{part}.") or part.startswith(f"{key}.")
