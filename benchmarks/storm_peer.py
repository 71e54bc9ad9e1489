"""A rank of `bench storm` as one writes it without kdlab: for torchrun, and for torchft.

python -m torch.distributed.run --max-restarts=1000 -m benchmarks.storm_peer FOLDER

The folder holds `peer.json`, the photos decoded, their labels and the teacher. Each rank writes
a line for each step that it knows of: time, step, samples in it over all ranks, samples undone.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.nn.parallel import DistributedDataParallel

from kdlab.config.home import read_as
from kdlab.data.augment import Augment
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import Normalised

FIRST = 10  # step from which time is taken: all are warm
_RANKS = 2
# clothes_small, clothes_resnet and the loss of configs/clothes/quickstart.yaml
STUDENT = CifarResNet(depth=8, width=(8, 16, 32, 64))
TEACHER = CifarResNet(depth=14, width=(16, 32, 64, 96))
_LR, _MOMENTUM, _DECAY = 0.1, 0.9, 5e-4
_TEMPERATURE, _HARD, _SOFT = 4.0, 0.2, 0.8
_VIEWS = Augment(flip=True, crop_padding=4)


@dataclass(frozen=True, slots=True)
class StormPeer:
    """Settings of a rank that trains without kdlab, and its folder."""

    system: str
    folder: str
    steps: int
    batch: int  # over both ranks
    every: int  # steps between two checkpoints


def pid_file(folder: Path, rank: int) -> Path:
    return folder / f"pid{rank}"


def steps_file(folder: Path, rank: int) -> Path:
    return folder / f"steps{rank}.txt"


class _Rank:
    """One of the two, with its part of each batch."""

    def __init__(self, peer: StormPeer, number: int) -> None:
        self.peer, self.number = peer, number
        torch.set_num_threads(1)
        torch.manual_seed(0)
        folder = Path(self.peer.folder)
        self.photos = np.load(folder / "photos.npy")
        self.labels = torch.from_numpy(np.load(folder / "labels.npy")).long()
        classes = int(self.labels.max()) + 1
        self.teacher = TEACHER.build(classes, 3).requires_grad_(False).eval()
        self.teacher.load_state_dict(load_file(folder / "teacher.safetensors"))
        self.student: Normalised = STUDENT.build(classes, 3).train()
        self.log = steps_file(folder, self.number).open("a", buffering=1)
        pid_file(folder, self.number).write_text(str(os.getpid()))

    def optimizer(self) -> torch.optim.SGD:
        return torch.optim.SGD(
            self.student.parameters(),
            lr=_LR,
            momentum=_MOMENTUM,
            nesterov=True,
            weight_decay=_DECAY,
        )

    def part(self, step: int) -> NDArray[np.int64]:
        """Rows of this rank in a step, whatever happened in the steps before."""
        batches = len(self.photos) // self.peer.batch
        epoch, at = divmod(step, batches)
        drawn = np.random.default_rng((0, epoch)).permutation(len(self.photos))
        batch = drawn[at * self.peer.batch : (at + 1) * self.peer.batch]
        return batch[self.number :: _RANKS]

    def loss(self, network: Callable[[Tensor], Tensor], step: int) -> Tensor:
        rows = self.part(step)
        views = torch.from_numpy(_VIEWS.changed(self.photos[rows], rows, step))
        with torch.inference_mode():
            target = log_softmax(self.teacher(views) / _TEMPERATURE, 1)
        scores = network(views)
        soft = kl_div(
            log_softmax(scores / _TEMPERATURE, 1),
            target.clone(),
            reduction="batchmean",
            log_target=True,
        )
        hard = cross_entropy(scores, self.labels[rows])
        return _HARD * hard + _SOFT * _TEMPERATURE**2 * soft

    def say(self, step: int, samples: int, undone: int = 0) -> None:
        self.log.write(f"{time.time():.3f} {step} {samples} {undone}\n")


def _torchrun(rank: _Rank) -> None:
    """DDP: if a rank dies, all end, and all continue from the newest checkpoint."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    network, optimizer = DistributedDataParallel(rank.student), rank.optimizer()
    newest, step = Path(rank.peer.folder) / "checkpoint.pt", 0
    if newest.exists():
        saved = torch.load(newest, weights_only=True)
        rank.student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < rank.peer.steps:
        optimizer.zero_grad(set_to_none=True)
        rank.loss(network, step).backward()
        optimizer.step()
        step += 1
        if rank.number:
            continue
        rank.say(step, rank.peer.batch)
        if step % rank.peer.every == 0:
            saved = {
                "student": rank.student.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
            }
            torch.save(saved, newest.with_suffix(".new"))
            newest.with_suffix(".new").replace(newest)


def _torchft(rank: _Rank) -> None:
    """Replicas that come and go; a step counts with those that took part in it."""
    from torchft import DistributedDataParallel as Elastic
    from torchft import Manager, Optimizer, ProcessGroupGloo

    optimizer = rank.optimizer()
    while not pid_file(Path(rank.peer.folder), 1 - rank.number).exists():
        time.sleep(0.05)  # they begin together: what is lost is lost by failures

    def load(saved: Any) -> None:
        rank.student.load_state_dict(saved["student"])
        optimizer.load_state_dict(saved["optimizer"])

    def state() -> Any:
        return {
            "student": rank.student.state_dict(),
            "optimizer": optimizer.state_dict(),
        }

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        replica_id=f"storm{rank.number}",
        timeout=timedelta(seconds=10),
    )
    network = Elastic(manager, rank.student)
    elastic = Optimizer(manager, optimizer)
    while (step := manager.current_step()) < rank.peer.steps:
        elastic.zero_grad()  # asks who takes part
        rank.loss(network, step).backward()
        elastic.step()  # if all agree
        rows = rank.peer.batch // _RANKS
        if manager.current_step() > step:
            rank.say(step + 1, rows * manager.num_participants())
        else:
            rank.say(step, 0, rows)


def main() -> None:
    folder = Path(sys.argv[1])
    peer = read_as(StormPeer, folder / "peer.json")
    if peer.system == "torchrun":
        _torchrun(_Rank(peer, int(os.environ["RANK"])))
    else:
        _torchft(_Rank(peer, int(os.environ["REPLICA"])))


if __name__ == "__main__":
    main()
