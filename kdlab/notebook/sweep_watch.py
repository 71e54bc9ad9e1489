"""The state of a sweep's live view, from its events; without clock, widget or study."""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdlab.events.curve import Curve, CurveKey
from kdlab.events.event import Event
from kdlab.events.sweep_state import SweepState, TrialState
from kdlab.events.sweeps import TrialDone
from kdlab.report.table import duration, number
from kdlab.report.verdict import shown

_BEST, _LINES = 12, 150  # rows of the table, lines of the picture
_TICKER, _MARKS = 40, 60


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {number(value)}" for key, value in values.items())


@dataclass
class SweepWatch(SweepState):
    """State of a sweep so far."""

    curves: dict[CurveKey, Curve] = field(default_factory=dict)
    news: list[tuple[CurveKey, float, float]] = field(default_factory=list)
    ticker: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_TICKER))
    marks: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MARKS))

    def apply(self, event: Event) -> None:
        """Update by an event of `events.jsonl`."""
        best = self.best
        super().apply(event)
        if isinstance(event, TrialDone):
            self._draw(self.trials[event.number], new=self.best is not best)
        if line := event.text():
            self.ticker.append((event.time, line))

    def _draw(self, trial: TrialState, *, new: bool) -> None:
        if trial.state == "failed":
            self._mark(trial, "bad", f"trial {trial.number} failed, {_words(trial.values)}")
        if trial.value is None or not math.isfinite(trial.value):
            return
        self._point("complete" if trial.state == "complete" else "pruned", trial)
        if new:
            text = f"the best so far is trial {trial.number}, {_words(trial.values)}"
            self._mark(trial, "good", text)
        if self.best is not None:
            self._point("best so far", self.best, trial.number)

    def _point(self, name: str, trial: TrialState, x: int | None = None) -> None:
        assert trial.value is not None
        key, at = (self.metric, name, ""), float(trial.number if x is None else x)
        curve = self.curves.setdefault(key, Curve())
        # Parallel trials end out of order; the line must not go back.
        if name == "best so far" and curve.points:
            at = max(at, curve.points[-1][0])
        curve.add(at, trial.value)
        self.news.append((key, at, trial.value))

    def _mark(self, trial: TrialState, kind: str, text: str) -> None:
        self.marks.append({"step": trial.number, "text": text, "kind": kind})

    def take_news(self) -> list[tuple[CurveKey, float, float]]:
        """Return points since the last call: key, trial number, value."""
        news, self.news = self.news, []
        return news

    # State of the page

    def page(self, importance: Mapping[str, float]) -> dict[str, Any]:
        """Return the state as plain facts.

        Args:
            importance: importance of each key.
        """
        running = [t for t in self.trials.values() if t.state == "running"]
        count = {
            name: sum(t.state == name for t in self.trials.values())
            for name in ("complete", "pruned", "failed")
        }
        facts = [["trials", f"{self.ended} of {self.of_trials}"]]
        facts += [[name, str(n)] for name, n in count.items() if n]
        if running and self.state == "running":
            facts.append(["running", str(len(running))])
        if self.best is not None:
            facts.append([f"best {self.metric}", f"{number(self.best.value)}"])
        return {
            "title": f"sweep {self.study}",
            "state": self.state,
            "done": self.ended,
            "of": self.of_trials,
            "left": self._left(),
            "facts": facts,
            "verdict": self._verdict(),
            "panels": [{"title": self.metric, "unit": "", "across": "trial"}],
            "levels": self._unchanged(),
            "marks": list(self.marks),
            "waiting": "No trial has ended yet.",
            **self._sweep(importance),
            "ticker": [list(line) for line in list(self.ticker)[::-1]],
        }

    def _left(self) -> str:
        if self.state != "running" or not self.ended or self.ended >= self.of_trials:
            return ""
        seconds = (self.time - self.began) / self.ended * (self.of_trials - self.ended)
        return f"about {duration(seconds)} left"

    def _unchanged(self) -> list[dict[str, Any]]:
        default = self.unchanged
        if default is None or default.value is None:
            return []
        points = [[0.0, default.value]]
        return [{"panel": self.metric, "name": "unchanged setting", "points": points}]

    def _verdict(self) -> dict[str, str] | None:
        if self.state == "failed":
            return {"tone": "bad", "text": f"Failed: {self.error}"}
        if self.best is None:
            return None
        best = f"Best so far: trial {self.best.number} with {_words(self.best.values)}."
        tone, sentence = shown(self.result.get("verdict"))
        if sentence:
            return {"tone": tone, "text": f"{best.replace(' so far', '')} {sentence}"}
        default = self.unchanged
        if default is None or default.value is None or default is self.best:
            if default is not None and default is self.best:
                return {"tone": "warn", "text": f"{best} That is the unchanged setting."}
            return {"tone": "plain", "text": best}
        assert self.best.value is not None
        difference = abs(self.best.value - default.value)
        gain = f"{self.metric} better by {difference:.3g} than with the unchanged setting"
        # A simulated trial has no seed.
        caveat = "" if self.spec.get("simulation") else " (one seed, not confirmed)"
        return {"tone": "plain", "text": f"{best} {gain}{caveat}."}

    def _sweep(self, importance: Mapping[str, float]) -> dict[str, Any]:
        ended = [t for t in self.trials.values() if t.value is not None]
        complete = [t for t in ended if t.state == "complete"]
        complete.sort(key=lambda t: (not t.feasible, self.sign * (t.value or 0.0)))
        space: Mapping[str, Mapping[str, Any]] = self.spec.get("space") or {}
        axes = [_Axis(key, dimension, ended) for key, dimension in space.items()]
        values = [t.value for t in ended if t.value is not None]
        last = _Axis.of_metric(self.metric, values)
        newest = sorted(ended, key=lambda t: -t.number)[: _LINES // 2]
        shown = {t.number: t for t in [*newest, *complete[: _LINES // 2]]}
        ends = (min(values), max(values)) if values else (0.0, 0.0)
        scores = {n: self._score(t, *ends) for n, t in shown.items()}
        head = ["trial", self.metric, *space, "from", "took"]
        lines = [
            {
                "number": t.number,
                "at": [*(axis.share(t.values.get(axis.name)) for axis in axes),
                       last.share(t.value)],
                "score": scores[t.number],
                "pruned": t.state != "complete",
                "text": self._line_text(t),
            }
            # The best are drawn last, on top.
            for t in sorted(shown.values(), key=lambda t: scores[t.number])
        ]  # fmt: skip
        return {
            "axes": [{"name": a.name, "marks": a.marks()} for a in (*axes, last)],
            "lines": lines,
            "importance": sorted(importance.items(), key=lambda item: -item[1]),
            "importance_note": "Share in what good trials differ by from all (PED-ANOVA).",
            "trials": [head, *(_cells(t, space) for t in complete[:_BEST])]
            if complete
            else [],
        }

    def _score(self, trial: TrialState, low: float, high: float) -> float:
        """Return 1 for the best value between these ends, 0 for the worst."""
        if trial.value is None or high == low:
            return 1.0
        share = (trial.value - low) / (high - low)
        return 1 - share if self.sign > 0 else share

    def _line_text(self, trial: TrialState) -> str:
        words = [f"{k} {number(v)}" for k, v in trial.values.items()]
        return ", ".join([f"{self.metric} {number(trial.value)}", *words])


def _cells(trial: TrialState, space: Iterable[str]) -> list[str]:
    seconds = "-" if trial.seconds is None else duration(trial.seconds)
    name = str(trial.number) + ("" if trial.feasible else " (breaks a constraint)")
    tried = [number(trial.values.get(key)) for key in space]
    return [name, number(trial.value), *tried, trial.why, seconds]


class _Axis:
    """An axis of one key: maps its values to 0 to 1."""

    def __init__(
        self, name: str, dimension: Mapping[str, Any], trials: Sequence[TrialState]
    ) -> None:
        self.name = name
        self.log = bool(dimension.get("log"))
        self.choices = [str(c) for c in dimension.get("choices") or ()]
        seen = [t.values.get(name) for t in trials]
        numbers = [float(v) for v in seen if isinstance(v, int | float)]
        low, high = dimension.get("low"), dimension.get("high")
        if dimension.get("times") or low is None or high is None:
            low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
        # Enqueued values may be outside the range.
        self.low = min([float(low), *numbers])
        self.high = max([float(high), *numbers])
        self.log = self.log and self.low > 0

    @classmethod
    def of_metric(cls, name: str, values: Sequence[float]) -> "_Axis":
        ends = {"low": min(values), "high": max(values)} if values else {}
        return cls(name, ends, ())

    def share(self, value: object) -> float | None:
        """Return a value's position from 0 to 1; None if the trial does not have the key."""
        if value is None:
            return None
        if self.choices:
            if str(value) not in self.choices:
                return None
            return (self.choices.index(str(value)) + 0.5) / len(self.choices)
        if not isinstance(value, int | float):
            return None
        if self.high == self.low:
            return 0.5
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Return positions and labels of the axis's marks."""
        if self.choices:
            count = len(self.choices)
            return [((k + 0.5) / count, str(c)[:14]) for k, c in enumerate(self.choices)]
        if self.high == self.low:
            return [(0.5, number(float(self.low)))]
        between = (
            math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        )
        ends = [(0.0, self.low), (0.5, between), (1.0, self.high)]
        return [(share, f"{value:.3g}") for share, value in ends]
