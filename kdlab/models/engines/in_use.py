"""The chosen engine in service, checked against the network on its first real requests.

Real requests may differ from the views that it was chosen on. If its answers disagree there, the
network itself takes over.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from kdlab.models.engines.choose import JUDGED, ChosenEngine, Tally, first_line


class EngineInUse:
    """Computes one request at a time.

    Args:
        model: the unchanged network, in evaluation mode.
        first: engine to begin with.
        on_change: called in the requesting thread after the network took over.
    """

    def __init__(
        self,
        model: nn.Module,
        first: ChosenEngine,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.chosen, self.trials = first.chosen, first.trials
        self._model, self._ask, self._on_change = model, first.ask, on_change
        self._tally = Tally()
        self._turn = threading.Lock()  # libraries compute one request at a time
        self.extra_s = 0.0  # seconds of the last request spent on checking

    def __str__(self) -> str:
        return str(ChosenEngine(self.chosen, self._ask, self.trials))

    @torch.inference_mode()
    def predict_unobserved(self, views: Tensor) -> Tensor:
        """Compute images that are no request; their answers are not checked."""
        with self._turn:
            return self._ask(views)

    @torch.inference_mode()
    def __call__(self, views: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes) float32 logits."""
        with self._turn:
            return self._answer(views)

    def _answer(self, views: Tensor) -> Tensor:
        self.extra_s = 0.0
        if self.chosen.engine == "eager":
            return self._ask(views)
        held = self._tally.samples >= JUDGED
        try:
            answer = self._ask(views)
            if not held:
                _finish(views)
        except Exception as error:
            # An engine that fails at a real request is refused; the network answers.
            self._refuse(first_line(error))
            return self._ask(views)
        if held:
            return answer
        begin = time.perf_counter()
        right = self._model(views).float()
        self._tally.add(right, answer)
        self.extra_s = time.perf_counter() - begin
        if trouble := self._tally.trouble(self.chosen.precision):
            self._refuse(f"on real requests {trouble}")
            return right
        return answer

    def _refuse(self, why: str) -> None:
        """Refuse the engine in use; the unchanged network takes over."""
        others = (t for t in self.trials if t.label != self.chosen.label)
        self.trials = (*others, replace(self.chosen, refused=why))
        self.chosen = self.trials[0]
        self._ask = lambda views: self._model(views).float()
        self._on_change()


def _finish(views: Tensor) -> None:
    """Wait for an asynchronous device, so that its work is timed."""
    if views.device.type == "cuda":
        torch.cuda.synchronize(views.device)
