"""`torchrun --nproc-per-node N -m kdlab.run.torchrun RUN`: ranks that torchrun starts.

The other way to have ranks is a group of kdlab's own (rank_orders.py). Here torchrun
decides who is a rank, and starts all of them again when one dies (`--max-restarts`); each
start is a generation and begins at the newest checkpoint. What a rank does is the same
code (rank.py). Rank 0 is the run's process too: it keeps the teacher pool, writes status
and results, and tells the others which member comes next.

`kdlab run NAME --torchrun` makes the run folder, which all ranks must see.
"""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from kdlab.cluster.pool import Pool
from kdlab.config.home import locked
from kdlab.errors import BadInput, KdlabError, RunStopped
from kdlab.run import folder as folders
from kdlab.run.folder import RunFolder
from kdlab.run.process import RunProcess, accept_components, carry_out
from kdlab.run.rank import Rank
from kdlab.run.rank_orders import pool_facts
from kdlab.run.spec import Member
from kdlab.run.stop_request import StopRequest
from kdlab.train.aggregation.ranks import Ranks, Solo, Together
from kdlab.train.events import MemberLog

_LARGEST_ORDER = 64 * 1024  # bytes
_STOPPED = 130
_PATIENCE = timedelta(days=7)  # a teacher may be trained first; torchrun sees who dies


class Launched:
    """The ranks torchrun started, seen from one of them. At rank 0: a `Group`."""

    def __init__(self, run: RunFolder, stop: Callable[[], bool]) -> None:
        self.run_folder, self.stop = run, stop
        self.generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
        self.world = dist.get_world_size()
        self.failovers: list[float] = []  # torchrun's, not seen from here
        self.next: dict[str, Any] = {}  # rank 0's order to all

    def run(self) -> dict[str, Any]:
        """Rank 0: have all train what is `next`."""
        result = self.train(self.order(self.next))
        assert result is not None
        return result

    def order(self, order: dict[str, Any] | None = None) -> dict[str, Any]:
        """Rank 0's order, at every rank: JSON through the process group."""
        raw = torch.zeros(_LARGEST_ORDER, dtype=torch.uint8)
        if order is not None:
            text = json.dumps(order).encode()
            raw[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        if dist.get_backend() == "nccl":
            raw = raw.cuda()
        dist.broadcast(raw, src=0)
        found: dict[str, Any] = json.loads(raw.cpu().numpy().tobytes().rstrip(b"\0"))
        return found

    def train(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """One member from its newest checkpoint to its end; the result at rank 0."""
        rank = Rank(
            self.run_folder, order["member"], lambda generation, step: None, self.stop
        )
        device = rank.device(int(os.environ.get("LOCAL_RANK", "0")))
        ranks: Ranks = Solo()
        if self.world > 1:
            ranks = Together(device, rank.lr_scale(self.world))
        return rank.train(order, ranks, device)


class LaunchedRunProcess(RunProcess):
    """The run's process, which is rank 0 as well."""

    def __init__(self, launched: Launched) -> None:
        super().__init__(launched.run_folder, launched.stop)
        self.launched = launched

    def group(
        self, member: Member, folder: Path, log: MemberLog, pool: Pool | None
    ) -> Launched:
        number, world = self.launched.generation, self.launched.world
        log.emit("generation", number=number, ranks=world, launcher="torchrun")
        self.launched.next = {
            "member": member.name,
            "generation": number,
            "pool": pool_facts(pool),
        }
        return self.launched


def main(words: list[str]) -> int:
    """The exit code, for torchrun: 0 also after a stop, or it would start everybody again.

    Raises:
        BadInput: no run is named, or this process was not started by torchrun.
    """
    if len(words) != 1 or "RANK" not in os.environ:
        raise BadInput(
            "This module is started by torchrun, which sets RANK and WORLD_SIZE, with one "
            "run: torchrun --nproc-per-node 2 -m kdlab.run.torchrun RUN. "
            "kdlab run NAME --torchrun makes the run and prints the whole line."
        )
    stop = StopRequest()
    run = folders.find(words[0])
    backend = "nccl" if torch.cuda.device_count() >= _on_this_machine() else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    launched = Launched(run, stop)
    try:
        if dist.get_rank() == 0:
            return _master(run, launched)
        accept_components(run)
        while "end" not in (order := launched.order()):
            launched.train(order)
        return 0
    except RunStopped:
        return 0
    finally:
        dist.destroy_process_group()


def _on_this_machine() -> int:
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _master(run: RunFolder, launched: Launched) -> int:
    def busy() -> None:
        raise BadInput(f"Run {run.run_id} is going already; end that one first.")

    with locked(run.path / "lock", busy):
        born = psutil.Process().create_time()
        run.write_status(pid=os.getpid(), process_started=born)
        code = carry_out(run, lambda: LaunchedRunProcess(launched))
    if code == 0:
        launched.order({"end": True})  # the others wait for another member
    return 0 if code == _STOPPED else code


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KdlabError as error:
        raise SystemExit(str(error)) from error
