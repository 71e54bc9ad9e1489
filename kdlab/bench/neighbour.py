"""A process that keeps the other core as busy as a teacher would, at a given pace."""

import time

import torch

from kdlab.cluster.children import announce, configured
from kdlab.models.patch_net import PatchNet


@torch.inference_mode()
def main() -> None:
    config = configured()
    torch.set_num_threads(1)
    channels, *_ = shape = config["shape"]
    model = PatchNet(patch=config["patch"], depth=config["depth"]).build(
        config["classes"], channels
    )
    model.eval()
    views = torch.zeros((config["batch"], *shape), dtype=torch.uint8)
    model(views)
    announce(ready=True)
    due = time.monotonic()
    while True:
        model(views)
        due = max(due + 1 / config["per_second"], time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))  # the pace itself


if __name__ == "__main__":
    main()
