"""Which engine a teacher computes with (models/engines): chosen before it serves, and kept.

What was found is remembered on the machine, so that the next teacher prepares that alone.
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

_CHOOSING_S = 10.0  # of a machine's first teacher; what takes long is begun in half of it


class EnginesOfTeacher:
    """Chooses and serves; used in the inference thread once it serves.

    Args:
        model: on its device, in evaluation mode.
        deployment: what is served.
        threads: that an engine may use.
        views: (N, C, H, W) uint8 that engines are measured with.
        on_change: called where real requests refuse the engine, with how many times as fast the
            network as it is computes.
        shown: makes the views that int8 takes its ranges of; None where there are none.
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
        # A compiler takes a minute, while nobody is served.
        here = available_engines(str(views.device), shown)
        engines = [e for e in here if e.name != "compiled"]
        known = recall(self._network)
        self._known = (
            known if known in {"eager fp32", *(e.label for e in engines)} else None
        )
        choice = partial(choose, model, views, threads=threads, seconds=_CHOOSING_S)
        self.first = choice([e for e in engines if self._known in (None, e.label)])
        if self._doubts(self.first.trials):  # a library that was replaced, say
            self.first = choice(engines)
        if self._known is None:
            remember(self._network, self.first.trials)
        self._on_change = on_change
        self.in_use = EngineInUse(model, self.first, self._changed)
        self.described = self._words()  # as of the last change: for people

    def _words(self) -> str:
        words = str(self.in_use)
        return f"{words}; {self._known} was the best here before" if self._known else words

    def _doubts(self, trials: Sequence[Trial]) -> bool:
        """Whether what was remembered cannot be used any more; the next teacher is not told it."""
        if self._known not in {t.label for t in trials if t.refused}:
            return False
        forget(self._network)
        self._known = None
        return True

    def _changed(self) -> None:
        """Real requests contradict what was chosen."""
        forget(self._network)
        self.described = self._words()
        self._on_change(self.in_use.chosen.rate / self.first.chosen.rate)


def few_enough(model: nn.Module, views: Tensor, seconds: float = 0.15) -> Tensor:
    """As many of these views as the network computes in about so long, two at least.

    Compilers and exporters take a batch of one for a size that never changes.
    """
    with torch.inference_mode():
        model(views[:1])
        begin = time.perf_counter()
        model(views[:1])
        one_s = time.perf_counter() - begin
    return views[: max(2, int(seconds / max(one_s, 1e-6)))]
