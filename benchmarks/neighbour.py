"""A process that keeps the other core busy for a given share of the time."""

import time
from dataclasses import dataclass

import torch

from kdlab.models.memory import keep_freed_memory
from kdlab.models.patch_net import PatchNet
from kdlab.supervision.children import announce, configured, give_way


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourConfig:
    """Its model (PatchNet), its batches (uint8 views), and the share of the time."""

    patch: int
    depth: int
    classes: int
    shape: tuple[int, int, int]  # (C, H, W)
    batch: int
    share: float


@torch.inference_mode()
def main() -> None:
    config = configured(NeighbourConfig)
    give_way()  # as the teacher does
    keep_freed_memory()
    torch.set_num_threads(1)
    channels, *_ = shape = config.shape
    model = PatchNet(patch=config.patch, depth=config.depth).build(config.classes, channels)
    model.eval()
    views = torch.zeros((config.batch, *shape), dtype=torch.uint8)
    model(views)
    announce(ready=True)
    idle_over_busy = 1 / config.share - 1
    while True:
        begin = time.thread_time()
        model(views)
        time.sleep(idle_over_busy * (time.thread_time() - begin))  # the share itself


if __name__ == "__main__":
    main()
