"""The engine that serves, held to the network as it is on its first real requests.

It was chosen on views before that; real requests may be less kind. One that they contradict is
given up for the network itself.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from kdlab.models.engines.choose import JUDGED, ChosenEngine, Tally, said


class EngineInUse:
    """Answers; whoever asks while another does has to wait.

    Args:
        model: the network as it is, in evaluation mode.
        first: what serves from now on.
        on_change: called in the asking thread after the network took over.
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
        self.extra_s = 0.0  # of the last request: what was computed for nobody

    def __str__(self) -> str:
        return str(ChosenEngine(self.chosen, self._ask, self.trials))

    @torch.inference_mode()
    def alone(self, views: Tensor) -> Tensor:
        """The same for images that are nobody's request: nothing is learnt from them."""
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
            # A library that fails at a real request is refused; the request is answered.
            self._refuse(said(error))
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
        """The engine in use; the network as it is takes over."""
        others = (t for t in self.trials if t.label != self.chosen.label)
        self.trials = (*others, replace(self.chosen, refused=why))
        self.chosen = self.trials[0]
        self._ask = lambda views: self._model(views).float()
        self._on_change()


def _finish(views: Tensor) -> None:
    """Wait for a device that computes on its own: what it has not done yet took no time."""
    if views.device.type == "cuda":
        torch.cuda.synchronize(views.device)
