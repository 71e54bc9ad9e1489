"""Which engine a machine computes a network with: the fastest of those that say the same.

Engines take turns, so that a drift of the machine meets all of them. One is used only if its
answers do no harm: in fp32 they are the network's but for rounding; in half precision a student
learns the same from them. Of a trained network bf16 moves a probability of one image in a thousand
by 0.02 to 0.03; the largest of some hundreds alone says nothing of what is learned.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from statistics import median

import torch
from torch import Tensor, nn

from kdlab.codec import Amount
from kdlab.models.engines import exported, in_torch
from kdlab.models.engines.engine import Asked, Engine, Precision

# What a probability may differ by: in fp32 any, in fewer bits 99.9 % of the views' furthest.
_ALLOWED: dict[Precision, float] = {"fp32": 1e-4, "bf16": 0.05, "fp16": 0.05, "int8": 0.05}
_NATS = 1e-3  # mean divergence: soft labels differ from true ones by 0.1 to 1
_OTHERS = 5  # of so many views may have another likeliest class:
JUDGED = 1000
_ROUNDS, _ENOUGH = 3, 15  # each engine: at least, and at most
WORTH = 1.03  # times as fast as what is simpler: else the simpler one stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One engine on this network and machine.

    Attributes:
        engine, precision: which.
        rate: samples/s; 0 where it was not timed.
        furthest: difference of a probability from that of the network as it is: the largest,
            in half precision the largest but for a view in a thousand.
        nats: mean divergence of its answers from the network's.
        same_top1: share of the views whose likeliest class is the same.
        prepared_s: seconds until it could answer.
        refused: why it is not used; empty if it could be.
    """

    engine: str
    precision: Precision
    rate: Amount = 0.0
    furthest: float = 0.0
    nats: float = 0.0
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


def installed(device: str, shown: Callable[[], Tensor] | None = None) -> Iterator[Engine]:
    """Those that this machine has, the quickest to prepare first.

    Args:
        device: "cpu", or "cuda" with or without a number.
        shown: makes some hundred views of the data, which int8 takes its ranges of; without them
            there is no int8.
    """
    yield from in_torch.folded_engines(device)
    if device == "cpu":
        yield from exported.engines(shown)
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
    best = fastest(timed)
    # Weights that were made in inference mode can be asked in no other.
    ask = torch.inference_mode()(ready[timed.index(best)][1])
    return ChosenEngine(best, ask, (*timed, *refused))


def fastest(timed: Sequence[Trial]) -> Trial:
    """One that is hardly faster than what comes before it, and is simpler, is not it."""
    best = timed[0]
    for trial in timed:
        if trial.rate > WORTH * best.rate:
            best = trial
    return best


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
        tally = Tally()
        tally.add(right, ask(views))
        facts = tally.facts(engine.precision)
        refused = tally.trouble(engine.precision)
    except Exception as error:  # libraries raise all kinds: it is left out, and said
        refused = said(error)
    facts["prepared_s"] = time.perf_counter() - begin
    trial = Trial(engine=engine.name, precision=engine.precision, refused=refused, **facts)
    return trial, None if refused else ask


def said(error: Exception) -> str:
    """One line of it; some have no text."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"


@dataclass(slots=True)
class Tally:
    """How far an engine was from the network on some views."""

    samples: int = 0
    others: int = 0  # samples whose likeliest class was another
    nats: float = 0.0  # divergence, summed
    apart: list[Tensor] = field(default_factory=list)  # (N,) furthest probability of each

    def add(self, right: Tensor, found: Tensor) -> None:
        """(N, classes) logits of the network as it is, and of the engine."""
        p, q = (scores.detach().cpu().log_softmax(1) for scores in (right, found))
        self.samples += len(p)
        self.others += int((p.argmax(1) != q.argmax(1)).sum())
        self.nats += float((p.exp() * (p - q)).sum())
        self.apart.append((p.exp() - q.exp()).abs().amax(1))

    def facts(self, precision: Precision) -> dict[str, float]:
        """Fields of `Trial`."""
        apart, share = torch.cat(self.apart), 1.0 if precision == "fp32" else 0.999
        furthest = float(apart.quantile(share)) if bool(apart.isfinite().all()) else nan
        same = 1 - self.others / self.samples
        return {
            "furthest": furthest, "nats": self.nats / self.samples, "same_top1": same
        }  # fmt: skip

    def trouble(self, precision: Precision) -> str:
        """Why the engine is refused; empty if it is not."""
        facts, allowed = self.facts(precision), _ALLOWED[precision]
        if not facts["furthest"] <= allowed:  # also where it is no number
            apart = facts["furthest"]
            return f"a probability is {apart:.2g} off; {precision} may be {allowed:g} off"
        if not facts["nats"] <= _NATS:
            return f"answers diverge by {facts['nats']:.2g} nats, more than {_NATS:g}"
        if self.others * JUDGED > _OTHERS * max(self.samples, JUDGED):
            rule = f"at most {_OTHERS} in {JUDGED:,} may be"
            return f"top-1 is another in {self.others} of {self.samples} views; {rule}"
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
