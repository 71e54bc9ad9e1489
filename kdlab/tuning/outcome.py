"""The result of a sweep: the keys of `kdlab sweep --json`, and a summary."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

from kdlab.codec import from_builtins
from kdlab.events.checks import CheckMade
from kdlab.report import page
from kdlab.report.table import number
from kdlab.report.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A row of the table of trials."""

    number: int
    state: str  # Optuna's name
    why: str  # origin of its values
    set: Mapping[str, object]  # values by key of the space
    values: Mapping[str, float] | None  # of the objectives; None: it did not complete
    feasible: bool | None  # whether it meets the constraints
    error: str | None
    retry_of: int | None  # number of the trial that this one retries
    run_dir: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestTrial(TrialRow):
    metrics: Mapping[str, float]  # all known metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    total: int  # a retried trial counts once
    complete: int
    pruned: int
    failed: int
    tried_again: int

    @property
    def ended(self) -> int:
        return self.complete + self.pruned + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric over several seeds."""

    mean: float | None
    std: float | None
    values: Sequence[float]
    seeds: Sequence[int] = ()  # of the values


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The best trial and the unchanged experiment, with fresh seeds."""

    metric: str  # the first objective
    seeds: Sequence[int]
    optimistic: float  # the search's value of the best
    failed: Mapping[str, str]  # errors by name of the run
    best: Spread
    as_it_is: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOutcome:
    study: str
    status: str = "finished"
    objectives: Sequence[str]
    directions: Sequence[str]
    best: BestTrial
    front: Sequence[TrialRow]
    trials: TrialCounts
    sweep: str
    confirmed: Confirmed | None
    verdict: Verdict | None = None  # of the best setting against the unchanged one
    saved: Sequence[str]  # paths of configs and cards
    figures: Sequence[str]
    jobs: int
    driver_ms_per_trial: float | None
    ended_early: str | None  # reason
    wall_seconds: float
    storage: str
    tracking_uri: str | None
    sweep_dir: str
    checks: Sequence[Mapping[str, str]] = field(default_factory=list)  # issues first

    def __str__(self) -> str:
        """Summary of the sweep."""
        best = self.best
        lines = [f"Best: trial {best.number}"]
        values = [*(best.values or {}).items(), *best.set.items()]
        lines += [f"  {name} = {number(value)}" for name, value in values]
        confirmed = self.confirmed
        if confirmed is not None:
            lines.append(f"With fresh seeds {list(confirmed.seeds)}, {confirmed.metric}:")
            labels = ("the best", "the experiment as it is")
            spreads = (confirmed.best, confirmed.as_it_is)
            for label, spread in zip(labels, spreads, strict=True):
                std = "" if spread.std is None else f" ± {spread.std:.3g}"
                lines.append(f"  {label}: {number(spread.mean)}{std}")
            lines.append(f"  (in the search, optimistic: {number(confirmed.optimistic)})")
        if self.verdict is not None:
            lines.append(fill(self.verdict.sentence, 100))
        count = self.trials
        lines.append(
            f"{count.total} trials: {count.complete} complete, {count.pruned} pruned, "
            f"{count.failed} failed; {count.tried_again} lost and retried"
        )
        checks = [from_builtins(CheckMade, check) for check in self.checks]
        lines += [check.text() for check in checks if check.text()]
        lines += [f"Saved: {path}" for path in self.saved]
        return "\n".join(lines)


class SweepResult(dict[str, Any]):
    """Result with the keys of `kdlab sweep --json`; a notebook shows a summary."""

    def _repr_html_(self) -> str:
        words = html.escape(str(from_builtins(SweepOutcome, self)))
        keys = "wall_seconds", "storage", "sweep_dir"
        facts = [[key, number(self[key])] for key in keys]
        return page.shown(page.Card("", f"<pre>{words}</pre>{page.table((), facts)}"))
