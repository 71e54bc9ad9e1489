"""Chooses the fastest engine of a machine whose answers agree with the network's.

Engines are timed in turns, so that a drift of the machine affects all of them. One is used only if
its answers do no harm: in fp32 they are the network's but for rounding; in half precision a student
learns the same from them. For a trained network bf16 moves a probability of one image in a thousand
by 0.02 to 0.03; the largest of some hundreds alone does not show what is learned.
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
from kdlab.models.engines.engine import Engine, Precision, Predict

# Allowed difference of a probability: in fp32 of any, in fewer bits of 99.9 % of the views.
_ALLOWED: dict[Precision, float] = {"fp32": 1e-4, "bf16": 0.05, "fp16": 0.05, "int8": 0.05}
_NATS = 1e-3  # mean divergence: soft labels differ from true ones by 0.1 to 1
_OTHERS, JUDGED = 5, 1000  # so many of so many views may have another likeliest class
_ROUNDS, _ENOUGH = 3, 15  # timings of each engine: at least, at most
WORTH = 1.03  # speed-up over a simpler engine from which on it is preferred


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One engine on this network and machine.

    Attributes:
        engine, precision: of the engine.
        rate: samples/s; 0 where it was not timed.
        furthest: largest difference of a probability from the network's, in half precision
            the 99.9th percentile of the views.
        nats: mean KL divergence of its answers from the network's.
        same_top1: share of the views with the same likeliest class.
        prepared_s: seconds of preparation.
        refused: reason not to use it, or empty.
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
    """Chosen engine, how to call it, and all trials."""

    chosen: Trial
    ask: Predict
    trials: tuple[Trial, ...]

    @property
    def gain(self) -> float:
        """Speed-up over the unchanged network."""
        return self.chosen.rate / self.trials[0].rate

    def __str__(self) -> str:
        """Summarise in one line: engine, speed-up, rates, refused engines."""
        refused = [f"{t.label} refused: {t.refused}" for t in self.trials if t.refused]
        rates = ", ".join(f"{t.label} {t.rate:,.0f}" for t in self.trials if not t.refused)
        words = [f"{self.chosen.label}, {self.gain:.2f} times eager (samples/s: {rates})"]
        return "; ".join([*words, *refused])


def available_engines(
    device: str, shown: Callable[[], Tensor] | None = None
) -> Iterator[Engine]:
    """Yield the engines of this machine, the quickest to prepare first.

    Args:
        device: "cpu", or "cuda" with or without a number.
        shown: returns some hundred views of the data, to calibrate int8; None leaves int8 out.
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
    """Choose the fastest engine that agrees with the network.

    Args:
        model: in evaluation mode.
        views: (N, C, H, W) uint8 on the model's device; real images test more than random ones.
        engines: candidates, in this order.
        threads: number of threads of an engine.
        seconds: time limit; engines that compile are skipped once half of it is spent.
    """
    begin = time.perf_counter()
    right = model(views).float()
    ready: list[tuple[Trial, Predict]] = [
        (Trial(engine="eager", precision="fp32"), lambda images: model(images).float())
    ]
    refused = list[Trial]()
    for engine in engines:
        spent = time.perf_counter() - begin
        if engine.slow_to_prepare and spent > seconds / 2:
            why = f"not tried: {spent:.0f} of {seconds:.0f} s were spent"
            refused.append(
                Trial(engine=engine.name, precision=engine.precision, refused=why)
            )
            continue
        trial, ask = prepare_engine(engine, model, views, right, threads)
        if ask is None:
            refused.append(trial)
        else:
            ready.append((trial, ask))
    rates = _measure_rates([ask for _, ask in ready], views, begin + seconds)
    timed = [
        replace(trial, rate=rate) for (trial, _), rate in zip(ready, rates, strict=True)
    ]
    best = select_fastest(timed)
    # Weights created in inference mode can be used in no other mode.
    ask = torch.inference_mode()(ready[timed.index(best)][1])
    return ChosenEngine(best, ask, (*timed, *refused))


def select_fastest(timed: Sequence[Trial]) -> Trial:
    """Return the fastest trial; a simpler one before it wins if the gain is below `WORTH`."""
    best = timed[0]
    for trial in timed:
        if trial.rate > WORTH * best.rate:
            best = trial
    return best


def prepare_engine(
    engine: Engine, model: nn.Module, views: Tensor, right: Tensor, threads: int
) -> tuple[Trial, Predict | None]:
    """Prepare an engine and check its answers; None in place of a function if it is refused.

    Args:
        engine: to prepare.
        model: in evaluation mode.
        views: (N, C, H, W) to prepare with and to compare answers on.
        right: (N, classes) logits of the unchanged network.
        threads: number of threads that it may use.
    """
    begin = time.perf_counter()
    facts: dict[str, float] = {}
    ask: Predict | None = None
    try:
        ask = engine.prepare(model, views, threads)
        tally = Tally()
        tally.add(right, ask(views))
        facts = tally.facts(engine.precision)
        refused = tally.trouble(engine.precision)
    except Exception as error:  # libraries raise all kinds: the engine is refused
        refused = first_line(error)
    facts["prepared_s"] = time.perf_counter() - begin
    trial = Trial(engine=engine.name, precision=engine.precision, refused=refused, **facts)
    return trial, None if refused else ask


def first_line(error: Exception) -> str:
    """Return the type and first line of an error; some have no text."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"


@dataclass(slots=True)
class Tally:
    """Differences between the answers of an engine and of the network."""

    samples: int = 0
    changed: int = 0  # samples with another likeliest class
    nats: float = 0.0  # divergence, summed
    apart: list[Tensor] = field(default_factory=list)  # (N,) furthest probability of each

    def add(self, right: Tensor, answers: Tensor) -> None:
        """Add (N, classes) logits of the unchanged network and of the engine."""
        p, q = (scores.detach().cpu().log_softmax(1) for scores in (right, answers))
        self.samples += len(p)
        self.changed += int((p.argmax(1) != q.argmax(1)).sum())
        self.nats += float((p.exp() * (p - q)).sum())
        self.apart.append((p.exp() - q.exp()).abs().amax(1))

    def facts(self, precision: Precision) -> dict[str, float]:
        """Return the fields of `Trial` for these differences."""
        apart, share = torch.cat(self.apart), 1.0 if precision == "fp32" else 0.999
        furthest = float(apart.quantile(share)) if bool(apart.isfinite().all()) else nan
        same = 1 - self.changed / self.samples
        return {
            "furthest": furthest, "nats": self.nats / self.samples, "same_top1": same
        }  # fmt: skip

    def trouble(self, precision: Precision) -> str:
        """Return the reason to refuse the engine, or an empty string."""
        facts, allowed = self.facts(precision), _ALLOWED[precision]
        if not facts["furthest"] <= allowed:  # also where it is NaN
            apart = facts["furthest"]
            return f"a probability is {apart:.2g} off; {precision} may be {allowed:g} off"
        if not facts["nats"] <= _NATS:
            return f"answers diverge by {facts['nats']:.2g} nats, more than {_NATS:g}"
        if self.changed * JUDGED > _OTHERS * max(self.samples, JUDGED):
            rule = f"at most {_OTHERS} in {JUDGED:,} may be"
            return f"top-1 differs in {self.changed} of {self.samples} views; {rule}"
        return ""


def _measure_rates(asks: list[Predict], views: Tensor, until: float) -> list[float]:
    """Measure samples/s of each engine, in turns."""
    taken: list[list[float]] = [[] for _ in asks]
    while (done := len(taken[0])) < _ROUNDS or (
        done < _ENOUGH and time.perf_counter() < until
    ):
        for ask, seconds in zip(asks, taken, strict=True):
            seconds.append(_seconds(ask, views))
    return [len(views) / median(seconds) for seconds in taken]


def _seconds(ask: Predict, views: Tensor) -> float:
    begin = time.perf_counter()
    ask(views)
    if views.device.type == "cuda":
        torch.cuda.synchronize(views.device)
    return time.perf_counter() - begin
