"""`torchrun --nproc-per-node N -m kdlab.run.torchrun RUN`: ranks that torchrun starts.

The other way to have ranks is a group of kdlab's own (rank_orders.py). Here torchrun
decides who is a rank, and starts all of them again when one dies (`--max-restarts`); each
start is a generation and begins at the newest checkpoint. What a rank does is the same
code (rank.py). Rank 0 is the run's process too: it keeps the teacher pool, writes status
and results, and tells the others which member comes next.

`kdlab run NAME --torchrun` makes the run folder, which all ranks must see.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from kdlab.cluster.pool import Pool
from kdlab.config.home import locked, write_json
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

_LOOK_S = 0.05
_STOPPED = 130


class Launched:
    """The ranks torchrun started, seen from one of them. At rank 0: a `Group`."""

    def __init__(self, run: RunFolder, stop: Callable[[], bool]) -> None:
        self.run_folder, self.stop = run, stop
        self.generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.failovers: list[float] = []  # torchrun's, not seen from here
        self.next: dict[str, Any] = {}  # rank 0's order to all
        self.orders = 0
        launch = os.environ.get("TORCHELASTIC_RUN_ID", "none") + os.environ["MASTER_PORT"]
        digest = hashlib.sha256(launch.encode()).hexdigest()[:16]
        self.folder = run.path / "torchrun" / f"{digest}-{self.generation}"

    def run(self) -> dict[str, Any]:
        """Rank 0: have all train what is `next`."""
        result = self.train(self.publish(self.next))
        assert result is not None
        return result

    def meet(self) -> None:
        """The process group of this start.

        Through a file of its own: in torchrun's store a restarted group may find the
        addresses of the dead (seen with gloo: it connects to them until its time is over).
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        on_this_machine = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        enough = torch.cuda.device_count() >= on_this_machine
        dist.init_process_group(
            "nccl" if enough else "gloo",
            init_method=f"file://{self.folder / 'meeting'}",
            rank=self.rank,
            world_size=self.world,
        )

    def publish(self, order: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's order, for all."""
        write_json(self.folder / f"order-{self.orders}.json", order)
        self.orders += 1
        return order

    def order(self) -> dict[str, Any]:
        """The next order.

        Not through the process group: a teacher may be trained first, and no collective
        waits that long.
        """
        path = self.folder / f"order-{self.orders}.json"
        while not path.is_file():
            if self.stop():
                raise RunStopped("stopped by the user before the next training")
            time.sleep(_LOOK_S)  # between looks; torchrun ends this rank when rank 0 dies
        self.orders += 1
        found: dict[str, Any] = json.loads(path.read_text())
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
    launched = Launched(run, stop)
    launched.meet()
    try:
        if launched.rank == 0:
            return _master(run, launched)
        accept_components(run)
        while "end" not in (order := launched.order()):
            launched.train(order)
        return 0
    except RunStopped:
        return 0
    finally:
        dist.destroy_process_group()


def _master(run: RunFolder, launched: Launched) -> int:
    # A rank 0 that was killed may hold the lock for a moment longer.
    patience = time.monotonic() + 10.0

    def busy() -> None:
        if time.monotonic() > patience:
            raise BadInput(f"Run {run.run_id} is going already; end that one first.")

    with locked(run.path / "lock", busy):
        born = psutil.Process().create_time()
        run.write_status(pid=os.getpid(), process_started=born)
        code = carry_out(run, lambda: LaunchedRunProcess(launched))
    if code == 0:
        launched.publish({"end": True})  # the others wait for another member
    return 0 if code == _STOPPED else code


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KdlabError as error:
        raise SystemExit(str(error)) from error
