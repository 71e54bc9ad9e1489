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
from pathlib import Path

from kdlab.errors import KdlabError, is_full
from kdlab.messages import plain
from kdlab.supervision.children import announce, configured
from kdlab.tuning.trial_messages import (
    TRIAL_ORDERS,
    StopTrial,
    TrialEnded,
    TrialOrder,
    TrialWorkerConfig,
)

Work = Callable[[TrialOrder], TrialEnded]


def main() -> None:
    orders: queue.SimpleQueue[TrialOrder | None] = queue.SimpleQueue()
    stopped = set[int]()  # numbers of trials; orders come on another thread

    def hear(message: Mapping[str, object]) -> None:
        if "end" in message:
            orders.put(None)
            return
        match TRIAL_ORDERS.typed(message):
            case StopTrial(number):
                stopped.add(number)
            case TrialOrder() as order:
                orders.put(order)

    config = configured(TrialWorkerConfig, hear)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if config.gpu is not None:  # before anything looks for one
        os.environ["CUDA_VISIBLE_DEVICES"] = config.gpu
    work = _simulated if config.simulates else _trainer(stopped)
    gc.freeze()  # what was imported stays: looking through it takes 0.2 s each time
    announce(ready=True)
    while (order := orders.get()) is not None:
        announce(**plain(_guarded(work, order)))
    gc.unfreeze()


def _guarded(work: Work, order: TrialOrder) -> TrialEnded:
    try:
        return work(order)
    except KdlabError as error:
        traceback.print_exc()
        return TrialEnded(order.number, "failed", str(error))
    except Exception as error:  # a trial that goes wrong is news, not the end
        traceback.print_exc()
        state = "no_room" if is_full(error) else "failed"
        return TrialEnded(order.number, state, f"{type(error).__name__}: {error}")


def _trainer(stopped: Container[int]) -> Work:
    import timm  # noqa: F401  # seconds, which no trial should pay
    import torch
    import torchvision  # noqa: F401

    from kdlab.experiment.folder import RunFolder
    from kdlab.run.process.execution import execute
    from kdlab.tuning.trial import TrialProcess

    threads = torch.get_num_threads()

    def train(order: TrialOrder) -> TrialEnded:
        run = RunFolder(Path(str(order.run)))
        torch.set_num_threads(threads)  # the trial before may have had another number
        full = list[Exception]()

        def stop() -> bool:
            return order.number in stopped

        def passes(error: Exception) -> bool:
            if is_full(error):
                full.append(error)
            return bool(full)

        execute(run, lambda: TrialProcess(run, stop, order.pool), passes)
        if full:
            raise full[0]
        status = run.raw_status()
        return TrialEnded(order.number, str(status.state), status.error, status.result)

    return train


def _simulated(order: TrialOrder) -> TrialEnded:
    from kdlab.config.check import construct
    from kdlab.config.load import from_dict
    from kdlab.simulate.kind import SimulationSpec
    from kdlab.tuning.simulated import simulated

    spec = construct(SimulationSpec, from_dict(order.simulation or {}, "trial"))
    return TrialEnded(order.number, "finished", result=simulated(spec))


if __name__ == "__main__":
    main()
