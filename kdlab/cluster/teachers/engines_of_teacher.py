"""Which engine a teacher computes with, from its arrival on (models/engines).

A second or three before it serves, for what is quick to prepare; the rest beside its work, and only
when there is enough of that. What was found is remembered on the machine.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kdlab.cluster.deployment import Deployment
from kdlab.models.engines import EngineInUse, choose, forget, installed, recall, remember

_FIRST_S = 3.0  # before it serves
_BESIDE_S = 120.0  # beside its work: none is begun later
# Of computing, before engines are prepared that take as long themselves.
_ENOUGH_WORK_S = 20.0


class EnginesOfTeacher:
    """Chooses, serves and changes over; used in the inference thread once it serves.

    Args:
        model: on its device, in evaluation mode.
        deployment: what is served.
        threads: that an engine may use.
        views: (N, C, H, W) uint8 that engines are measured with.
        on_change: called with how many times as fast the new engine is.
    """

    def __init__(
        self,
        model: nn.Module,
        deployment: Deployment,
        threads: int,
        views: Tensor,
        on_change: Callable[[float], None],
    ) -> None:
        self._threads, self._views = threads, views
        self._network: dict[str, object] = {
            "teacher": deployment.teacher,
            "shape": list(deployment.shape),
            "threads": threads,
            "device": views.device.type,
        }
        engines = list(installed(str(views.device)))
        known = recall(self._network)
        self._known = (
            known if known in {"eager fp32", *(e.label for e in engines)} else None
        )
        slow = [e for e in engines if e.slow_to_prepare]
        quick = [e for e in engines if not e.slow_to_prepare]
        if self._known is not None:
            slow = [e for e in slow if e.label == self._known]
            quick = quick if slow else [e for e in quick if e.label == self._known]
        first = choose(model, views, quick, threads=threads, seconds=_FIRST_S)
        self.first, self._slow, self._on_change = first, slow, on_change
        self._rate = first.chosen.rate
        self.in_use = EngineInUse(model, first, self._changed)
        self._worked_s = 0.0
        self._doubt_memory()
        self.described = self._words()  # as of the last change: for people

    def _words(self) -> str:
        words = str(self.in_use)
        return f"{words}; {self._known} was the best here before" if self._known else words

    def _doubt_memory(self) -> None:
        """What cannot be used any more is not told to the next teacher."""
        refused = {t.label for t in self.in_use.trials if t.refused}
        if self._known in refused:
            forget(self._network)

    def _changed(self) -> None:
        self._doubt_memory()
        self.described = self._words()
        before, self._rate = self._rate, self.in_use.chosen.rate
        self._on_change(self._rate / before)

    def worked(self, seconds: float) -> None:
        """So long it has computed once more; begins with the slow ones when it is worth it."""
        self._worked_s += seconds
        if self._slow and (self._known or self._worked_s >= _ENOUGH_WORK_S):
            slow, self._slow = self._slow, []
            self.in_use.try_beside(
                slow,
                self._views,
                threads=self._threads,
                seconds=_BESIDE_S,
                settled=self._settled,
            )

    def _settled(self) -> None:
        self._doubt_memory()
        complete = not any(t.refused.startswith("not tried") for t in self.in_use.trials)
        if self._known is None and complete:
            remember(self._network, self.in_use.trials)


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
