"""A teacher's engine (models/engines): chosen before it serves, and remembered.

The machine remembers the choice, so that the next teacher prepares only that engine.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from kdlab.cluster.deployment import Deployment
from kdlab.models.engines import (
    EngineInUse,
    Trial,
    available_engines,
    choose,
    forget,
    recall,
    remember,
)

_CHOOSING_S = 10.0  # for a machine's first teacher; slow engines start in the first half


class EnginesOfTeacher:
    """Engine of a teacher; used in the inference thread once it serves.

    Args:
        model: on its device, in evaluation mode.
        deployment: of the pool.
        threads: that an engine may use.
        views: (N, C, H, W) uint8 that engines are measured with.
        on_change: called when real requests reject the engine, with the rate of the plain
            network relative to it.
        shown: makes the views from which int8 takes its ranges; None where there are none.
    """

    def __init__(
        self,
        model: nn.Module,
        deployment: Deployment,
        threads: int,
        views: Tensor,
        on_change: Callable[[float], None],
        shown: Callable[[], Tensor] | None = None,
    ) -> None:
        self._network: dict[str, object] = {
            "teacher": deployment.teacher,
            "shape": list(deployment.shape),
            "threads": threads,
            "device": views.device.type,
        }
        # Compiling takes a minute, in which nobody is served.
        available = available_engines(str(views.device), shown)
        engines = [e for e in available if e.name != "compiled"]
        known = recall(self._network)
        self._known = (
            known if known in {"eager fp32", *(e.label for e in engines)} else None
        )
        choice = partial(choose, model, views, threads=threads, seconds=_CHOOSING_S)
        self.first = choice([e for e in engines if self._known in (None, e.label)])
        if self._forget_failed(self.first.trials):  # such as a library that was replaced
            self.first = choice(engines)
        if self._known is None:
            remember(self._network, self.first.trials)
        self._on_change = on_change
        self.in_use = EngineInUse(model, self.first, self._changed)
        self.described = self._describe()  # after the last change

    def _describe(self) -> str:
        words = str(self.in_use)
        return f"{words}; {self._known} was the best here before" if self._known else words

    def _forget_failed(self, trials: Sequence[Trial]) -> bool:
        """Forget a remembered engine that failed; returns whether it did."""
        if self._known not in {t.label for t in trials if t.refused}:
            return False
        forget(self._network)
        self._known = None
        return True

    def _changed(self) -> None:
        """Handle that real requests rejected the chosen engine."""
        forget(self._network)
        self.described = self._describe()
        self._on_change(self.in_use.chosen.rate / self.first.chosen.rate)


def few_enough(model: nn.Module, views: Tensor, seconds: float = 0.15) -> Tensor:
    """First views, as many as the network computes in about `seconds`, at least two.

    Compilers and exporters treat a batch of one as a constant size.
    """
    with torch.inference_mode():
        model(views[:1])
        begin = time.perf_counter()
        model(views[:1])
        one_s = time.perf_counter() - begin
    return views[: max(2, int(seconds / max(one_s, 1e-6)))]
