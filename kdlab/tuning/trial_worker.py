"""A process that runs trials, one after the other: `python -m kdlab.tuning.trial_worker`.

It stays warm: torch, timm and data are loaded once. It reports a trial that fails and
continues; if a trial ends the process, the driver handles it.
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
    """Orders of the driver, which arrive on another thread."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[TrialOrder | None] = queue.SimpleQueue()
        self.stopped = set[int]()  # numbers of trials to stop

    def receive(self, message: Mapping[str, object]) -> None:
        if "end" in message:
            self._waiting.put(None)
            return
        match TrialWorkerOrder.from_builtins(message):
            case StopTrial(number):
                self.stopped.add(number)
            case TrialOrder() as order:
                self._waiting.put(order)

    def carry_out(self, work: RunTrial, send: Callable[..., None] = announce) -> None:
        """Execute orders one after the other, until the end."""
        send(ready=True)
        while (order := self._waiting.get()) is not None:
            send(**to_builtins(_run_guarded(work, order)))


def main() -> None:
    orders = OrderQueue()
    config = configured(TrialWorkerConfig, orders.receive)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if config.gpu is not None:  # before anything uses a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = config.gpu
    work = simulate if config.simulates else _make_trainer(orders.stopped)
    gc.freeze()  # excludes imported modules, which take 0.2 s a collection
    orders.carry_out(work)
    gc.unfreeze()


def _run_guarded(work: RunTrial, order: TrialOrder) -> TrialEnded:
    try:
        return work(order)
    except Exception as error:  # a failed trial does not end the worker
        traceback.print_exc()
        expected = isinstance(error, KdlabError)
        state = "no_room" if is_full(error) and not expected else "failed"
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        return TrialEnded(order.number, state, message)


def _make_trainer(stopped: Container[int]) -> RunTrial:
    import timm  # noqa: F401  # takes seconds: not in a trial's time
    import torch
    import torchvision  # noqa: F401

    from kdlab.run.process.run_process import RunProcess

    threads = torch.get_num_threads()

    def train(order: TrialOrder) -> TrialEnded:
        torch.set_num_threads(threads)  # the previous trial may have changed it
        return trained(order, stopped, partial(RunProcess, tracks=False))

    return train


def trained(order: TrialOrder, stopped: Container[int], process: MakeTrial) -> TrialEnded:
    """Train a run in its folder; OSError where the disk was full, without a final status."""
    run = RunFolder(Path(str(order.run)))
    disk_full = list[Exception]()

    def passes(error: Exception) -> bool:
        if is_full(error):
            disk_full.append(error)
        return bool(disk_full)

    def work() -> Job:
        return process(run, lambda: order.number in stopped, order.pool)

    with run.held():
        execute(run, work, passes)
    if disk_full:
        raise disk_full[0]
    status = run.raw_status()
    return TrialEnded(order.number, str(status.state), status.error, status.result)


if __name__ == "__main__":
    main()
