"""A set of many files, opened and trained on by a process that has imported nothing else."""

import os
import time
from dataclasses import dataclass, field

import psutil

from kdlab.data.image_folder import ImageFolder


@dataclass(slots=True)
class ManyFiles:
    """Time and memory that a process needed for a set."""

    open_s: float
    mb: float  # of the opened set
    rss_mb: float = 0.0  # of the whole process, in the end
    trained: dict[str, float] = field(default_factory=dict)  # where it trained


def opened(shards: list[str], home: str, steps: int = 0) -> ManyFiles:
    """Open the set and train so many steps of a small student on it; its index goes to `home`."""
    os.environ["KDLAB_HOME"] = home
    spec = ImageFolder(root=tuple(shards), size=32, kept="encoded")
    before, begin = _rss_mb(), time.perf_counter()
    data = spec.load(verify=False)
    usage = ManyFiles(time.perf_counter() - begin, _rss_mb() - before)
    data.views(data.train[::5000], 0)
    if steps:
        import torch

        from kdlab.data.samples import planned
        from kdlab.models.patch_net import PatchNet

        torch.set_num_threads(1)
        samples = planned(data, {}, batch=64, seed=0, epochs=1)
        begin = time.perf_counter()
        batches = samples.batches(0)[:steps]
        usage.trained["plan_s"] = time.perf_counter() - begin
        model = PatchNet(patch=8, depth=1, width=16).build(len(data.classes), 3).train()
        descent = torch.optim.SGD(model.parameters(), lr=0.01)
        begin = time.perf_counter()
        for ids, views in zip(batches, samples.views_ahead(batches, 0), strict=False):
            scores = model(torch.from_numpy(views))
            labels = torch.from_numpy(samples.labels(ids))
            torch.nn.functional.cross_entropy(scores, labels).backward()
            descent.step()
            descent.zero_grad()
        usage.trained["samples_per_s"] = 64 * steps / (time.perf_counter() - begin)
    usage.rss_mb = _rss_mb()
    return usage


def _rss_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6
