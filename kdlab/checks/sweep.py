"""Checks of a sweep when it has ended."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kdlab.checks.check import CodedCheck
from kdlab.report.verdict import Verdict

_EDGE = 0.05  # share of a range at its ends
_FAILED = 0.2  # share of trials


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRange:
    """A searched range, and the value of the best trial."""

    low: float
    high: float
    best: float
    log: bool = False

    @property
    def edge(self) -> str:
        """The end near the best value, "low" or "high"; empty where neither is near."""
        low, high, best = (
            math.log(v) if self.log else v for v in (self.low, self.high, self.best)
        )
        place = (best - low) / (high - low)
        return "low" if place < _EDGE else "high" if place > 1 - _EDGE else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFacts:
    """Results of a sweep.

    ranges: keys with a range of numbers.
    errors: of the trials that failed.
    confirmed: True where the best was trained with fresh seeds.
    """

    ranges: Mapping[str, TunedRange]
    ended: int
    errors: Sequence[str]
    verdict: Verdict | None
    confirmed: bool
    simulated: bool = False


class BestAtTheEdge(CodedCheck[SweepFacts]):
    code = "KD-S01"
    title = "the best setting is within its ranges"
    level = "tip"
    do = "Widen the range and start from these trials (warm_start)"

    def find(self, facts: SweepFacts) -> str | None:
        if not facts.ranges:
            return None
        return "; ".join(
            f"{key} = {span.best:.4g} is at the {span.edge} end of {span.low:g} to {span.high:g}"
            for key, span in facts.ranges.items()
            if span.edge
        )

    def advice(self, facts: SweepFacts) -> str:
        ends = {"low": (0.1, -1.0), "high": (10.0, 1.0)}
        wider = []
        for key, span in facts.ranges.items():
            if span.edge:
                factor, sign = ends[span.edge]
                end = span.low if span.edge == "low" else span.high
                beyond = (
                    end * factor if span.log else end + sign * (span.high - span.low) / 2
                )
                wider.append(f"space.{key}.{span.edge}={beyond:.3g}")
        return f"{self.do}: {' '.join(wider)}" if wider else self.do


class Unconfirmed(CodedCheck[SweepFacts]):
    code = "KD-S02"
    title = "the best setting is better with fresh seeds"
    level = "tip"
    do = "Set confirm={seeds: [1001, 1002, 1003]}, or more seeds"

    def find(self, facts: SweepFacts) -> str | None:
        if facts.simulated or facts.verdict is None:
            return None
        if not facts.confirmed:
            return "the best setting was not trained with fresh seeds"
        if facts.verdict.kind == "helped":
            return ""
        return facts.verdict.sentence.partition(": ")[2].partition(". Next")[0].rstrip(".")


class FailedTrials(CodedCheck[SweepFacts]):
    code = "KD-S03"
    title = "trials end well"
    do = "Narrow the space to values that train, or fix the error"

    def find(self, facts: SweepFacts) -> str | None:
        if not facts.ended:
            return None
        count = len(facts.errors)
        if count < _FAILED * facts.ended or not count:
            return ""
        first = next(iter(facts.errors[-1].splitlines()), "")[:200]
        return f"{count} of {facts.ended} trials failed, the last with: {first}"
