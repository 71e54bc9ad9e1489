"""What came of a sweep: what `kdlab sweep --json` prints, and the same in words."""

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
    state: str  # as Optuna names it
    why: str  # who chose its values
    set: Mapping[str, object]  # keys of the space with their values
    values: Mapping[str, float] | None  # of the objectives; None: it has not ended well
    feasible: bool | None  # whether it keeps the constraints
    error: str | None
    retry_of: int | None  # number of the trial whose values these are, once more
    run_dir: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestTrial(TrialRow):
    metrics: Mapping[str, float]  # all that are known


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    total: int  # one that was tried again counts once
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
    seeds: Sequence[int] = ()  # that they are of


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The best and the experiment as it is, with fresh seeds."""

    metric: str  # the first objective
    seeds: Sequence[int]
    optimistic: float  # what the search had of it
    failed: Mapping[str, str]  # why, by name of the run
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
    verdict: Verdict | None = None  # on the best setting beside the unchanged one
    saved: Sequence[str]  # configs and cards
    figures: Sequence[str]
    jobs: int
    driver_ms_per_trial: float | None
    ended_early: str | None  # why
    wall_seconds: float
    storage: str
    tracking_uri: str | None
    sweep_dir: str
    checks: Sequence[Mapping[str, str]] = field(default_factory=list)  # issues first

    def __str__(self) -> str:
        """The end of a sweep in words."""
        best = self.best
        lines = [f"Best: trial {best.number}"]
        found = [*(best.values or {}).items(), *best.set.items()]
        lines += [f"  {name} = {number(value)}" for name, value in found]
        again = self.confirmed
        if again is not None:
            lines.append(f"With fresh seeds {list(again.seeds)}, {again.metric}:")
            both = (("the best", again.best), ("the experiment as it is", again.as_it_is))
            for words, each in both:
                std = "" if each.std is None else f" ± {each.std:.3g}"
                lines.append(f"  {words}: {number(each.mean)}{std}")
            lines.append(f"  (the sweep's own, optimistic: {number(again.optimistic)})")
        if self.verdict is not None:
            lines.append(fill(self.verdict.sentence, 100))
        count = self.trials
        lines.append(
            f"{count.total} trials: {count.complete} complete, {count.pruned} pruned, "
            f"{count.failed} failed; {count.tried_again} were lost and tried again"
        )
        checks = [from_builtins(CheckMade, one) for one in self.checks]
        lines += [one.text() for one in checks if one.text()]
        lines += [f"Saved: {path}" for path in self.saved]
        return "\n".join(lines)


class SweepResult(dict[str, Any]):
    """The keys of `kdlab sweep --json`; a notebook shows them in words."""

    def _repr_html_(self) -> str:
        words = html.escape(str(from_builtins(SweepOutcome, self)))
        keys = "wall_seconds", "storage", "sweep_dir"
        facts = [[key, number(self[key])] for key in keys]
        return page.shown(page.Card("", f"<pre>{words}</pre>{page.table((), facts)}"))
