"""The state of a sweep, from its events alone: no clock, no widget, no study.

The terminal and the live view read it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kdlab.events.event import Event
from kdlab.events.sweeps import (
    AS_IT_IS,
    Searched,
    SweepDone,
    SweepStarted,
    TrialDone,
    TrialRequeued,
    TrialStarted,
    TrialStopping,
)


@dataclass(slots=True)
class TrialState:
    """One trial."""

    number: int
    values: Mapping[str, object]  # of the searched settings
    why: str  # suggested, enqueued, default, ...
    state: str = "running"  # complete, pruned, failed
    value: float | None = None  # of the first objective; of a pruned trial its last one
    scores: tuple[float, ...] = ()  # of all objectives, smaller is better
    feasible: bool = True
    seconds: float | None = None


@dataclass
class SweepState:
    """The state of a sweep after its events so far."""

    study: str = ""
    state: str = "starting"
    error: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)  # once it has ended
    objectives: Sequence[str] = ("value",)
    signs: Sequence[int] = (-1,)  # -1: larger is better
    spec: Mapping[str, Any] = field(default_factory=dict)
    of_trials: int = 0
    ended: int = 0
    began: float = 0.0  # seconds since 1970
    time: float = 0.0
    trials: dict[int, TrialState] = field(default_factory=dict)
    best: TrialState | None = None

    def apply(self, event: Event) -> None:
        """Apply one event of `events.jsonl`."""
        self.time = event.time
        match event:
            case SweepStarted():
                self.study, self.state, self.error = event.study, "running", ""
                self.objectives, self.spec = event.objectives, event.spec
                self.signs = [1 if d == "minimize" else -1 for d in event.directions]
                self.of_trials = int(event.spec.get("trials") or 0)
                self.began = self.began or event.time
            case TrialStarted():
                values = event.values
                self.trials[event.number] = TrialState(event.number, values, event.why)
            case TrialStopping() if event.number in self.trials:
                self.trials[event.number].value = event.value
            case TrialRequeued():  # under another number
                self.trials.pop(event.number, None)
            case TrialDone():
                self._ended(event)
            case Searched():
                self.state = "confirming"
            case SweepDone():
                self.state, self.error = event.state, event.error or ""
                self.result = event.result or {}

    def _ended(self, event: TrialDone) -> None:
        trial = self.trials.setdefault(
            event.number, TrialState(event.number, event.set, "")
        )
        trial.state, trial.seconds = event.state, event.seconds
        trial.feasible = event.feasible is not False
        trial.values = event.set or trial.values
        self.ended, self.of_trials = event.ended, event.of_trials
        if event.state != "complete":
            return
        values = event.values_found or {}
        trial.value = values.get(self.metric)
        numbers = [values.get(name) for name in self.objectives]
        trial.scores = tuple(
            sign * (math.inf if number is None or math.isnan(number) else number)
            for sign, number in zip(self.signs, numbers, strict=True)
        )
        fits = trial.feasible and trial.value is not None and math.isfinite(trial.value)
        if fits and (self.best is None or trial.scores < self.best.scores):
            self.best = trial

    @property
    def metric(self) -> str:
        """The first objective."""
        return self.objectives[0]

    @property
    def sign(self) -> int:
        return self.signs[0]

    @property
    def unchanged(self) -> TrialState | None:
        """The trial of the unchanged experiment, once it is complete."""
        trials = [t for t in self.trials.values() if t.why == AS_IT_IS]
        return trials[0] if trials and trials[0].state == "complete" else None
