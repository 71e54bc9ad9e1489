"""A process that carries out trials, one after the other: `python -m kdlab.tuning.trial_worker`.

It stays warm: torch, timm and data are imported and opened once. A trial that goes wrong
is told of and the process goes on; one that takes the process with it is the driver's
matter.
"""

import gc
import logging
import os
import queue
import traceback
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path

from kdlab.codec import to_builtins
from kdlab.errors import KdlabError, is_full
from kdlab.experiment.folder import RunFolder
from kdlab.run.process.execution import Job, execute
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.children import announce, configured
from kdlab.tuning.simulated import simulate
from kdlab.tuning.trial_workers import (
    StopTrial,
    TrialEnded,
    TrialOrder,
    TrialWorkerConfig,
    TrialWorkerOrder,
)

RunTrial = Callable[[TrialOrder], TrialEnded]
MakeTrial = Callable[[RunFolder, Callable[[], bool], PoolAddress | None], Job]


class OrderQueue:
    """What the driver has told; it comes on another thread."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[TrialOrder | None] = queue.SimpleQueue()
        self.stopped = set[int]()  # numbers of trials

    def hear(self, message: Mapping[str, object]) -> None:
        if "end" in message:
            self._waiting.put(None)
            return
        match TrialWorkerOrder.from_builtins(message):
            case StopTrial(number):
                self.stopped.add(number)
            case TrialOrder() as order:
                self._waiting.put(order)

    def carry_out(self, work: RunTrial, say: Callable[..., None] = announce) -> None:
        """One after the other, until the end is told."""
        say(ready=True)
        while (order := self._waiting.get()) is not None:
            say(**to_builtins(_guarded(work, order)))


def main() -> None:
    orders = OrderQueue()
    config = configured(TrialWorkerConfig, orders.hear)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if config.gpu is not None:  # before anything looks for one
        os.environ["CUDA_VISIBLE_DEVICES"] = config.gpu
    work = simulate if config.simulates else _trainer(orders.stopped)
    gc.freeze()  # what was imported stays: looking through it takes 0.2 s each time
    orders.carry_out(work)
    gc.unfreeze()


def _guarded(work: RunTrial, order: TrialOrder) -> TrialEnded:
    try:
        return work(order)
    except Exception as error:  # a trial that goes wrong is news, not the end
        traceback.print_exc()
        meant = isinstance(error, KdlabError)
        state = "no_room" if is_full(error) and not meant else "failed"
        words = str(error) if meant else f"{type(error).__name__}: {error}"
        return TrialEnded(order.number, state, words)


def _trainer(stopped: Container[int]) -> RunTrial:
    import timm  # noqa: F401  # seconds, which no trial should pay
    import torch
    import torchvision  # noqa: F401

    from kdlab.run.process.run_process import RunProcess

    threads = torch.get_num_threads()

    def train(order: TrialOrder) -> TrialEnded:
        torch.set_num_threads(threads)  # the trial before may have had another number
        return trained(order, stopped, partial(RunProcess, tracks=False))

    return train


def trained(order: TrialOrder, stopped: Container[int], process: MakeTrial) -> TrialEnded:
    """A run in its folder; OSError where the disk was full, and nothing is said of its end."""
    run = RunFolder(Path(str(order.run)))
    full = list[Exception]()

    def passes(error: Exception) -> bool:
        if is_full(error):
            full.append(error)
        return bool(full)

    def work() -> Job:
        return process(run, lambda: order.number in stopped, order.pool)

    with run.held():
        execute(run, work, passes)
    if full:
        raise full[0]
    status = run.raw_status()
    return TrialEnded(order.number, str(status.state), status.error, status.result)


if __name__ == "__main__":
    main()
