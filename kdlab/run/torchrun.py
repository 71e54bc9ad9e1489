"""`torchrun --nproc-per-node N -m kdlab.run.torchrun RUN`: ranks that torchrun starts.

The other way to have ranks is a group of kdlab's own (kdlab/experiment/groups.py). Here
torchrun decides who is a rank, and starts all of them again when one dies (`--max-restarts`);
each start is a generation and begins at the newest checkpoint. What a rank does is the same
code (kdlab/methods/student/rank.py). Rank 0 is the run's process too: it keeps the teacher
pool, writes status and results, and tells the others which member comes next.

`kdlab run NAME --torchrun` makes the run folder, which all ranks must see.
"""

import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch.distributed as dist

from kdlab.cluster.chaos import Target
from kdlab.config.home import write_json
from kdlab.errors import BadInput, KdlabError, RunStopped
from kdlab.events.ranks import GenerationBegun
from kdlab.experiment import folder as folders
from kdlab.experiment.components import accept_components
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining
from kdlab.experiment.rank_process import is_broken_group
from kdlab.messages import plain, typed
from kdlab.methods.student.rank import Rank
from kdlab.run.process.execution import execute
from kdlab.run.process.run_process import RunProcess
from kdlab.run.process.stop_request import StopRequest
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.rank_messages import GenerationOrder
from kdlab.train import checkpoint
from kdlab.train.result import MemberResult

_TICK_S = 0.05
_LAST_WORD_S = 10.0
_PATIENCE_S = 10.0  # for a rank 0 that was killed
_STOPPED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedOrder:
    """What all ranks do next, by rank 0: train a member, or end (None)."""

    member: str | None = None
    fence: int = 0  # checkpoints of an earlier start are not written any more
    pool: PoolAddress | None = None


class Launched:
    """The ranks torchrun started, seen from one of them. At rank 0: a `Group`."""

    def __init__(self, run: RunFolder, stop: Callable[[], bool]) -> None:
        self.run_folder, self.stop = run, stop
        self.attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.failovers: list[float] = []  # torchrun's, not seen from here
        self.next: LaunchedOrder | None = None  # rank 0's order to all
        self.orders = 0
        # Of this start alone: nothing that a start before left behind is taken for its own.
        self.folder = run.path / "torchrun" / self._word_of_this_start()
        self.folder.mkdir(parents=True, exist_ok=True)

    def _word_of_this_start(self) -> str:
        """A random word that rank 0 thinks of, through torchrun's store."""
        elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        # Kept: rank 0 may be its host.
        self._store = dist.TCPStore(  # type: ignore[attr-defined]  # stubs miss it
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=self.rank == 0 and not elsewhere,
        )
        key = f"kdlab/{os.environ.get('TORCHELASTIC_RUN_ID', 'none')}/{self.attempt}"
        if self.rank == 0:
            self._store.set(key, secrets.token_hex(8))
        return str(self._store.get(key).decode())

    def for_member(self, training: MemberTraining) -> "Launched":
        """Rank 0: the ranks that train this member next."""
        training.emit(
            GenerationBegun(number=self.attempt, ranks=self.world, launcher="torchrun")
        )
        self.next = LaunchedOrder(
            member=training.member.name,
            fence=checkpoint.raise_fence(training.folder / "checkpoints"),
            pool=PoolAddress.of(training.pool),
        )
        return self

    def targets(self) -> list[Target]:
        """None: torchrun ends all ranks when one is lost."""
        return []

    def run(self) -> Mapping[str, object]:
        """Rank 0: have all train what is `next`."""
        assert self.next is not None
        self.publish(self.next)
        result: Mapping[str, object] = plain(self.train(self.next))
        return result

    def publish(self, order: "LaunchedOrder") -> None:
        """Rank 0's order, for all."""
        write_json(self._order_path(), plain(order))
        self.orders += 1

    def _order_path(self) -> Path:
        return self.folder / f"order-{self.orders}.json"

    def order(self) -> "LaunchedOrder":
        """The next order.

        Not through a process group: a teacher may be trained first, and no collective
        waits that long.
        """
        self._wait_for_order(math.inf)  # torchrun ends this rank if rank 0 dies
        found = typed(LaunchedOrder, json.loads(self._order_path().read_text()))
        self.orders += 1
        return found

    def has_ended(self) -> bool:
        """Whether rank 0 says so within a moment: then a broken group is no failure."""
        return self._wait_for_order(_LAST_WORD_S) and self.order().member is None

    def _wait_for_order(self, patience_s: float) -> bool:
        """Whether it came in time."""
        deadline = time.monotonic() + patience_s
        while not (there := self._order_path().is_file()) and time.monotonic() < deadline:
            time.sleep(_TICK_S)  # between looks
        return there

    def train(self, order: "LaunchedOrder") -> MemberResult | None:
        """One member from its newest checkpoint to its end; the result at rank 0.

        The ranks meet through a file: in torchrun's store a restarted group may find the
        addresses of the dead (gloo then connects to them until its time is over).
        """
        rank = Rank(
            self.run_folder, str(order.member), lambda generation, step: None, self.stop
        )
        meeting = self.folder / f"meeting-{self.orders}"
        return rank.generation(
            GenerationOrder(
                generation=self.attempt,
                rank=self.rank,
                world=self.world,
                local_rank=int(os.environ["LOCAL_RANK"]),
                local_world=int(os.environ["LOCAL_WORLD_SIZE"]),
                meet_at=f"file://{meeting}",
                fence=order.fence,
                pool=order.pool,
            )
        )


def main(words: list[str]) -> int:
    """The exit code, for torchrun: 0 also after a stop, or it would start everybody again."""
    if len(words) != 1 or "RANK" not in os.environ:
        raise BadInput(
            "This module is started by torchrun, which sets RANK and WORLD_SIZE, with one "
            "run: torchrun --nproc-per-node 2 -m kdlab.run.torchrun RUN. "
            "kdlab run NAME --torchrun makes the run and prints the whole line."
        )
    stop = StopRequest()
    run = folders.find(words[0])
    launched = Launched(run, stop)
    if launched.rank == 0:
        return _master(run, launched)
    accept_components(run)
    try:
        while (order := launched.order()).member is not None:
            launched.train(order)
    except RunStopped:
        return 0
    except RuntimeError as error:
        if is_broken_group(error) and launched.has_ended():
            return 0
        raise
    return 0


def _master(run: RunFolder, launched: Launched) -> int:
    busy = BadInput(f"Run {run.run_id} is going already; end that one first.")
    last = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) < launched.attempt
    with run.held(busy, _PATIENCE_S):
        born = psutil.Process().create_time()
        run.write_status(pid=os.getpid(), process_started=born)
        code = execute(
            run,
            lambda: RunProcess(run, launched.stop, launched=launched.for_member),
            passes=lambda error: not last and is_broken_group(error),
        )
    if code in (0, _STOPPED):
        launched.publish(LaunchedOrder())  # the others wait for another member
        return 0
    return code


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KdlabError as error:
        raise SystemExit(str(error)) from error
