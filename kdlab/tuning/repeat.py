"""The best of a search again, with fresh seeds."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from optuna.trial import FrozenTrial

from kdlab.errors import ClusterError, RunStopped
from kdlab.events.general import Warned
from kdlab.events.log import read_all
from kdlab.events.sweeps import Confirming, RepeatDone, RepeatStarted
from kdlab.experiment.folder import RunFolder
from kdlab.tuning import metrics
from kdlab.tuning.outcome import Confirmed, Spread
from kdlab.tuning.trial_messages import TrialEnded
from kdlab.tuning.trial_notes import values_of
from kdlab.tuning.trial_workers import TrialWorkerLost, TrialWorkers

if TYPE_CHECKING:
    from kdlab.tuning.process import SweepProcess

_FIRST_ORDER = 1_000_000  # above all trials
_TICK_S = 0.01


def confirmed(
    sweep: "SweepProcess", workers: TrialWorkers, chosen: FrozenTrial, seeds: Sequence[int]
) -> Confirmed:
    """The first objective of the best trial and of the experiment as it is, mean ± std."""
    metric = sweep.spec.objectives[0].metric
    wanted = [
        Again("best", seed, f"best-{chosen.number}-seed{seed}", values_of(chosen))
        for seed in seeds
    ]
    wanted += [Again("as_it_is", s, f"as-it-is-seed{s}", {}) for s in seeds]
    repeats = Repeats(sweep, workers, wanted)
    done = repeats.run()
    values: dict[str, dict[int, float]] = {"best": {}, "as_it_is": {}}
    for again in wanted:
        value = found(metric, done[again.name]) if again.name in done else None
        values[again.of] |= {} if value is None else {again.seed: value}
    return Confirmed(
        metric=metric,
        seeds=list(seeds),
        optimistic=chosen.values[0],
        failed=repeats.failed,
        best=_spread(values["best"]),
        as_it_is=_spread(values["as_it_is"]),
    )


def found(metric: str, run: Path) -> float | None:
    """A metric of a run that has finished."""
    result = RunFolder(run).raw_status().result
    assert result is not None
    return metrics.metric(metric, simulated=False).of(
        result, read_all(run / "events.jsonl")
    )


def _spread(by_seed: Mapping[int, float]) -> Spread:
    values = list(by_seed.values())
    return Spread(
        mean=fmean(values) if values else None,
        std=stdev(values) if len(values) > 1 else None,
        values=values,
        seeds=list(by_seed),
    )


@dataclass(frozen=True, slots=True)
class Again:
    """A run with a fresh seed."""

    of: str  # "best" or "as_it_is"
    seed: int
    name: str  # of its folder
    values: Mapping[str, object]


class Repeats:
    """One run for each seed, so that all workers have something to do.

    What has ended is not done again when a sweep goes on.
    """

    def __init__(
        self, sweep: "SweepProcess", workers: TrialWorkers, wanted: Sequence[Again]
    ) -> None:
        self.sweep, self.workers = sweep, workers
        self.folder = sweep.folder.path / "confirm"
        self.done, self.failed = dict[str, Path](), dict[str, str]()
        for again in wanted:
            for path in self.folder.glob(f"{again.name}-*"):
                if RunFolder(path).raw_status().state == "finished":
                    self.done[again.name] = path
        self.waiting = [again for again in wanted if again.name not in self.done]
        self._running: dict[int, tuple[Again, Path]] = {}
        self._tries = dict.fromkeys((again.name for again in wanted), 0)
        seeds = sorted({again.seed for again in wanted})
        sweep.log.emit(Confirming(seeds=seeds, runs=len(self.waiting)))

    def run(self) -> dict[str, Path]:
        """Run folders by name, but those that `failed`; ClusterError where no worker comes up."""
        while self.waiting or self._running:
            for event in self.workers.events():
                self._hear(event)
            if self.sweep.stop():
                for order in self._running:
                    self.workers.stop(order)
                raise RunStopped("stopped by the user while the best was confirmed")
            for worker in self.workers.idle():
                if self.waiting:
                    self._begin(worker, self.waiting.pop(0))
            time.sleep(_TICK_S)  # between looks at pipes
        return self.done

    def _begin(self, worker: int, again: Again) -> None:
        self._tries[again.name] += 1
        before = list(self.folder.glob(f"{again.name}-*"))
        path = self.folder / f"{again.name}-{len(before)}"
        number = _FIRST_ORDER + sum(self._tries.values())
        order = self.sweep.run_order(number, path, again.values, seeds=[again.seed])
        self._running[number] = again, path
        begins = RepeatStarted(
            name=again.name,
            setting=again.of,
            seed=again.seed,
            run=str(path),
            set=again.values,
        )
        self.sweep.log.emit(begins)
        self.workers.send(worker, order)

    def _hear(self, event: TrialEnded | TrialWorkerLost) -> None:
        if isinstance(event, TrialWorkerLost) and event.hopeless:
            raise ClusterError(
                f"A worker to confirm the best does not come up. {event.error}"
            )
        if event.order not in self._running:
            return
        again, path = self._running.pop(event.order)
        self.sweep.log.emit(RepeatDone(run=str(path), state=event.state))
        if event.state == "finished":
            self.done[again.name] = path
        elif event.state == "lost" and self._tries[again.name] <= self.sweep.spec.retries:
            self.waiting.insert(0, again)
        else:
            self.failed[again.name] = str(event.error)
            self.sweep.log.emit(Warned(message=f"{path} did not confirm: {event.error}"))
