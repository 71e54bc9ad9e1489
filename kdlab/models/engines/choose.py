"""Which engine a machine computes a network with: the fastest of those that say the same.

Engines take turns, so that a drift of the machine meets all of them. One is used only if its
probabilities are those of the network as it is, within what its precision explains.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

from kdlab.models.engines import exported, in_torch
from kdlab.models.engines.engine import Asked, Engine, Precision

_ALLOWED: dict[Precision, float] = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
_SAME_TOP1 = 0.995  # of the views at least
_ROUNDS, _ENOUGH = 3, 15  # each engine: at least, and at most
WORTH = 1.03  # times as fast as what is simpler: else the simpler one stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One engine on this network and machine.

    Attributes:
        engine, precision: which.
        rate: samples/s; 0 where it was not timed.
        furthest: largest difference of a probability from that of the network as it is.
        same_top1: share of the views whose likeliest class is the same.
        prepared_s: seconds until it could answer.
        refused: why it is not used; empty if it could be.
    """

    engine: str
    precision: Precision
    rate: float = 0.0
    furthest: float = 0.0
    same_top1: float = 1.0
    prepared_s: float = 0.0
    refused: str = ""

    @property
    def label(self) -> str:
        return f"{self.engine} {self.precision}"


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """What was chosen, what answers, and all that was tried."""

    chosen: Trial
    ask: Asked
    trials: tuple[Trial, ...]

    @property
    def gain(self) -> float:
        """Samples/s over those of the network as it is."""
        return self.chosen.rate / self.trials[0].rate

    def __str__(self) -> str:
        """One line: what, how much faster, what was refused."""
        refused = [f"{t.label} refused: {t.refused}" for t in self.trials if t.refused]
        rates = ", ".join(f"{t.label} {t.rate:,.0f}" for t in self.trials if not t.refused)
        words = [f"{self.chosen.label}, {self.gain:.2f} times eager (samples/s: {rates})"]
        return "; ".join([*words, *refused])


def installed(device: str) -> Iterator[Engine]:
    """Those that this machine has, the quickest to prepare first.

    Args:
        device: "cpu", or "cuda" with or without a number.
    """
    yield from in_torch.folded_engines(device)
    if device == "cpu":
        yield from exported.engines()
    yield from in_torch.compiled_engines(device)


@torch.inference_mode()
def choose(
    model: nn.Module,
    views: Tensor,
    engines: Iterable[Engine],
    *,
    threads: int,
    seconds: float,
) -> ChosenEngine:
    """The fastest engine that agrees with the network.

    Args:
        model: in evaluation mode.
        views: (N, C, H, W) uint8 on the model's device; real ones show more than made-up ones.
        engines: that may be tried, in this order.
        threads: that an engine may use.
        seconds: for all of it; one that compiles is not begun when half of them are over.
    """
    begin = time.perf_counter()
    right = model(views).float()
    ready: list[tuple[Trial, Asked]] = [
        (Trial(engine="eager", precision="fp32"), lambda given: model(given).float())
    ]
    refused = list[Trial]()
    for engine in engines:
        spent = time.perf_counter() - begin
        if engine.slow_to_prepare and spent > seconds / 2:
            why = f"not tried: {spent:.0f} of {seconds:.0f} s were over"
            refused.append(
                Trial(engine=engine.name, precision=engine.precision, refused=why)
            )
            continue
        trial, ask = prepared(engine, model, views, right, threads)
        if ask is None:
            refused.append(trial)
        else:
            ready.append((trial, ask))
    rates = _rates([ask for _, ask in ready], views, begin + seconds)
    timed = [
        replace(trial, rate=rate) for (trial, _), rate in zip(ready, rates, strict=True)
    ]
    best = 0
    for k, trial in enumerate(timed):
        if trial.rate > WORTH * timed[best].rate:
            best = k
    # Weights that were made in inference mode can be asked in no other.
    ask = torch.inference_mode()(ready[best][1])
    return ChosenEngine(timed[best], ask, (*timed, *refused))


def prepared(
    engine: Engine, model: nn.Module, views: Tensor, right: Tensor, threads: int
) -> tuple[Trial, Asked | None]:
    """Ready to answer, or why not.

    Args:
        engine: one that was not tried yet.
        model: in evaluation mode.
        views: (N, C, H, W) to be prepared and held to the network with.
        right: (N, classes) logits of the network as it is.
        threads: that it may use.
    """
    begin = time.perf_counter()
    facts: dict[str, float] = {}
    ask: Asked | None = None
    try:
        ask = engine.prepare(model, views, threads)
        furthest, same = agreement(right, ask(views))
        facts = {"furthest": furthest, "same_top1": same}
        refused = disagreement(engine.precision, furthest, same)
    except (
        Exception
    ) as error:  # libraries raise all kinds: such an engine is left out, and said
        refused = said(error)
    facts["prepared_s"] = time.perf_counter() - begin
    trial = Trial(engine=engine.name, precision=engine.precision, refused=refused, **facts)
    return trial, None if refused else ask


def said(error: Exception) -> str:
    """One line of it; some have no text."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"


def agreement(right: Tensor, found: Tensor) -> tuple[float, float]:
    """How far probabilities are apart at most, and the share of rows with the same top-1.

    Args:
        right: (N, classes) logits of the network as it is.
        found: those of an engine.
    """
    right, found = right.detach().cpu(), found.detach().cpu()
    apart = (right.softmax(1) - found.softmax(1)).abs().max()
    same = (right.argmax(1) == found.argmax(1)).float().mean()
    return float(apart), float(same)


def disagreement(precision: Precision, furthest: float, same_top1: float) -> str:
    """Why answers so far from the network's are refused; empty if they are not."""
    allowed = _ALLOWED[precision]
    if not furthest <= allowed:  # also where it is no number
        return f"a probability is {furthest:.2g} off; {precision} may be {allowed:g} off"
    if same_top1 < _SAME_TOP1:
        return f"top-1 is the same in {same_top1:.1%} of the views, not in {_SAME_TOP1:.1%}"
    return ""


def _rates(asks: list[Asked], views: Tensor, until: float) -> list[float]:
    """Samples/s of each, in turns."""
    taken: list[list[float]] = [[] for _ in asks]
    while (done := len(taken[0])) < _ROUNDS or (
        done < _ENOUGH and time.perf_counter() < until
    ):
        for ask, seconds in zip(asks, taken, strict=True):
            seconds.append(_seconds(ask, views))
    return [len(views) / median(seconds) for seconds in taken]


def _seconds(ask: Asked, views: Tensor) -> float:
    begin = time.perf_counter()
    ask(views)
    if views.device.type == "cuda":
        torch.cuda.synchronize(views.device)
    return time.perf_counter() - begin
