"""The engine that serves, and others that may take its place while it does.

A teacher serves at once, by what is quick to prepare. What takes longer is prepared beside it, and
then answers some real requests too, for nobody: its time is compared with that of the engine in use
on the same requests, its answers with those of the network as it is. The engine in use is held to
the network on its first real requests in the same way: probe images may be kinder than real ones.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median

import torch
from torch import Tensor, nn

from kdlab.models.engines.choose import (
    WORTH,
    ChosenEngine,
    Trial,
    agreement,
    disagreement,
    prepared,
    said,
)
from kdlab.models.engines.engine import Asked, Engine, Precision

_HELD_TO = 200  # real samples, each engine: one in 200 may have another likeliest class
_COMPARED = 5  # requests, after one that prepares things


@dataclass(slots=True)
class Tally:
    """How far an engine was from the network on real requests."""

    samples: int = 0
    others: int = 0  # samples whose likeliest class was another
    furthest: float = 0.0  # largest difference of a probability

    def add(self, right: Tensor, found: Tensor) -> None:
        furthest, same = agreement(right, found)
        self.samples += len(right)
        self.others += round((1 - same) * len(right))
        # max() would lose a NaN.
        self.furthest = furthest if not furthest <= self.furthest else self.furthest

    def trouble(self, precision: Precision) -> str:
        """Why the engine is refused; empty if it is not."""
        same = 1 - self.others / max(self.samples, _HELD_TO)
        return disagreement(precision, self.furthest, same)


@dataclass(slots=True)
class _Rival:
    """One that is ready, and has still to show what it does with real requests."""

    trial: Trial
    ask: Asked
    tally: Tally = field(default_factory=Tally)
    ratios: list[float] = field(default_factory=list)  # seconds in use over its own

    @property
    def judged(self) -> bool:
        return len(self.ratios) > _COMPARED and self.tally.samples >= _HELD_TO

    @property
    def gain(self) -> float:
        """Times as fast as the engine in use, without the first request."""
        return median(self.ratios[1:])


class EngineInUse:
    """Answers; whoever asks while another does has to wait.

    Args:
        model: the network as it is, in evaluation mode.
        first: what serves from now on.
        on_change: called in the asking thread after another engine took over.
    """

    def __init__(
        self,
        model: nn.Module,
        first: ChosenEngine,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.chosen, self.trials = first.chosen, first.trials
        self._model, self._ask, self._on_change = model, first.ask, on_change
        self._others = list(first.others)  # compared if the first one is refused
        self._tally = Tally()  # of the engine in use
        self._turn = threading.Lock()  # libraries compute one request at a time
        self.extra_s = 0.0  # of the last request: what was computed for nobody
        # From the thread that prepares: ready to be compared, or refused already.
        self._rivals: queue.SimpleQueue[_Rival | Trial] = queue.SimpleQueue()
        self._rival: _Rival | None = None  # whose turn it is to show what it does
        self._preparing: threading.Thread | None = None
        self._settled: Callable[[], None] = lambda: None

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
        rival = self._next_rival()
        held = self.chosen.engine == "eager" or self._tally.samples >= _HELD_TO
        if held:
            self._others = []  # copies of the weights that nobody will ask for
        timed = rival is not None or not held
        if timed:
            _finish(views)  # what was under way before
        begin = time.perf_counter()
        try:
            answer = self._ask(views)
            if timed:
                _finish(views)
        except Exception as error:
            if self.chosen.engine == "eager":
                raise
            # A library that fails at a real request is refused; the request is answered.
            self._refuse(said(error))
            return self._model(views).float()
        seconds = time.perf_counter() - begin
        if held and rival is None:
            return answer
        begin = time.perf_counter()
        right = answer if self.chosen.engine == "eager" else self._model(views).float()
        if not held:
            self._tally.add(right, answer)
            if trouble := self._tally.trouble(self.chosen.precision):
                self._refuse(f"on real requests {trouble}")
                answer = right
        if rival is not None:
            self._compare(rival, views, right, seconds)
        self.extra_s = time.perf_counter() - begin
        return answer

    def try_beside(
        self,
        engines: Iterable[Engine],
        views: Tensor,
        *,
        threads: int,
        seconds: float,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare these in a thread of their own; those that agree are compared when it serves.

        Args:
            engines: in this order.
            views: (N, C, H, W) that they are prepared with and held to the network with.
            threads: that each may use.
            seconds: none is begun later.
            settled: called in the asking thread when all of them were compared or refused.
        """
        self._settled = settled
        self._preparing = threading.Thread(
            target=self._prepare,
            args=(list(engines), views, threads, seconds),
            name="engines",
            daemon=True,
        )
        self._preparing.start()

    @torch.inference_mode()
    def _prepare(
        self, engines: list[Engine], views: Tensor, threads: int, seconds: float
    ) -> None:
        torch.set_num_threads(threads)  # each thread has its own
        begin = time.perf_counter()
        views = views.clone()  # a tensor of inference mode, as requests are
        right = self._model(views).float()
        for engine in engines:
            spent = time.perf_counter() - begin
            if spent > seconds:
                why = f"not tried: {spent:.0f} of {seconds:.0f} s were over"
                self._rivals.put(
                    Trial(engine=engine.name, precision=engine.precision, refused=why)
                )
                continue
            trial, ask = prepared(engine, self._model, views, right, threads)
            if ask is None:
                self._rivals.put(trial)
                continue
            try:
                for other in (views[:1], torch.cat([views, views])):
                    ask(other)  # sizes that it would compile for while somebody waits
            except Exception as error:  # libraries raise all kinds
                self._rivals.put(replace(trial, refused=said(error)))
            else:
                self._rivals.put(_Rival(trial, ask))

    def _next_rival(self) -> _Rival | None:
        # What is prepared at the same time would be counted to whoever has the core less.
        if self._preparing is not None and self._preparing.is_alive():
            return None
        while self._rival is None:
            try:
                found = self._rivals.get_nowait()
            except queue.Empty:
                if self._preparing is not None:
                    self._preparing = None
                    self._settled()
                break
            if isinstance(found, Trial):
                self._note(found)
            else:
                self._rival = found
        return self._rival

    def _compare(
        self, rival: _Rival, views: Tensor, right: Tensor, in_use_s: float
    ) -> None:
        """The same request once more, for nobody."""
        begin = time.perf_counter()
        try:
            found = rival.ask(views)
            _finish(views)
        except Exception as error:  # libraries raise all kinds
            self._drop(rival, said(error))
            return
        rival.ratios.append(in_use_s / (time.perf_counter() - begin))
        rival.tally.add(right, found)
        if trouble := rival.tally.trouble(rival.trial.precision):
            self._drop(rival, f"on real requests {trouble}")
        elif rival.judged:
            self._rival = None
            trial = replace(rival.trial, rate=self.chosen.rate * rival.gain)
            self._note(trial)
            if rival.gain > WORTH:
                self.chosen, self._ask, self._tally = trial, rival.ask, rival.tally
                self._on_change()

    def _drop(self, rival: _Rival, why: str) -> None:
        self._rival = None
        self._note(replace(rival.trial, refused=why))

    def _refuse(self, why: str) -> None:
        """The engine in use; the network as it is takes over."""
        self._note(replace(self.chosen, refused=why))
        self.chosen = self.trials[0]
        self._ask = lambda views: self._model(views).float()
        for trial, ask in self._others:
            self._rivals.put(_Rival(trial, ask))
        self._others = []
        self._on_change()

    def _note(self, trial: Trial) -> None:
        """In place of what was known of the same engine."""
        others = (t for t in self.trials if t.label != trial.label)
        self.trials = (*others, trial)


def _finish(views: Tensor) -> None:
    """Wait for a device that computes on its own: what it has not done yet took no time."""
    if views.device.type == "cuda":
        torch.cuda.synchronize(views.device)
