"""A process that carries out trials, one after the other: `python -m kdlab.tuning.trial_worker`.

It stays warm: torch, timm and data are imported and opened once. A trial that goes wrong
is told of and the process goes on; one that takes the process with it is the driver's
matter.
"""

import gc
import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kdlab.cluster.children import announce, configured
from kdlab.errors import KdlabError, is_full


class Stop:
    """Whether the trial under way should end. Orders come on another thread."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.order = -1  # the one under way

    def hear(self, number: int) -> None:
        if number == self.order:
            self._asked.set()

    def begin(self, number: int) -> None:
        self._asked.clear()
        self.order = number

    def __call__(self) -> bool:
        return self._asked.is_set()


def main() -> None:
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    stop, early = Stop(), set[int]()

    def hear(order: dict[str, Any]) -> None:
        if "stop" in order:
            early.add(order["stop"])
            stop.hear(order["stop"])
        else:
            orders.put(order)

    config = configured(hear)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if config.get("gpu") is not None:  # before anything looks for one
        os.environ["CUDA_VISIBLE_DEVICES"] = str(config["gpu"])
    work = _simulated if config["simulates"] else _trainer(stop)
    gc.freeze()  # what was imported stays: looking through it takes 0.2 s each time
    announce(ready=True)
    while True:
        order = orders.get()
        if "end" in order:
            gc.unfreeze()
            return
        number = int(order["order"])
        stop.begin(number)
        if number in early:  # before it began
            stop.hear(number)
        announce(done=number, **_guarded(work, order))


def _guarded(work: Callable[..., dict[str, Any]], order: dict[str, Any]) -> dict[str, Any]:
    try:
        return work(order)
    except KdlabError as error:
        traceback.print_exc()
        return {"state": "failed", "error": str(error)}
    except Exception as error:  # a trial that goes wrong is news, not the end
        traceback.print_exc()
        state = "no_room" if is_full(error) else "failed"
        return {"state": state, "error": f"{type(error).__name__}: {error}"}


def _trainer(stop: Stop) -> Callable[[dict[str, Any]], dict[str, Any]]:
    import timm  # noqa: F401  # seconds, which no trial should pay
    import torch
    import torchvision  # noqa: F401

    from kdlab.experiment.folder import RunFolder
    from kdlab.run.carry_out import carry_out
    from kdlab.tuning.trial import TrialProcess

    threads = torch.get_num_threads()

    def train(order: dict[str, Any]) -> dict[str, Any]:
        run = RunFolder(Path(order["run"]))
        torch.set_num_threads(threads)  # the trial before may have had another number
        full = list[Exception]()

        def passes(error: Exception) -> bool:
            if is_full(error):
                full.append(error)
            return bool(full)

        carry_out(run, lambda: TrialProcess(run, stop, order.get("pool")), passes)
        if full:
            raise full[0]
        status = run.raw_status()
        return {key: status.get(key) for key in ("state", "error", "result")}

    return train


def _simulated(order: dict[str, Any]) -> dict[str, Any]:
    from kdlab.config.check import construct
    from kdlab.config.load import from_dict
    from kdlab.simulate.kind import SimulationSpec
    from kdlab.tuning.simulated import simulated

    spec = construct(SimulationSpec, from_dict(order["simulation"], "trial"))
    return {"state": "finished", "error": None, "result": simulated(spec)}


if __name__ == "__main__":
    main()
