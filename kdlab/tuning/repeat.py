"""The best of a search again, with fresh seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from optuna.trial import FrozenTrial

from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.sweeps import Confirming, RepeatDone, RepeatStarted
from kdlab.tuning.driver import kept
from kdlab.tuning.folder import SweepFolder
from kdlab.tuning.metrics import ResultFacts, measured
from kdlab.tuning.outcome import Confirmed, Spread
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder, TrialWorkers, WorkQueue
from kdlab.tuning.verdicts import values_of

_FIRST_ORDER = 1_000_000  # above all trials


@dataclass(slots=True)
class RepeatRun:
    """A run with a fresh seed."""

    of: str  # "best" or "as_it_is"
    seed: int
    name: str  # of its folder
    values: Mapping[str, object]
    tries: int = 0
    path: Path = Path()  # of the newest of them


class Confirmation(WorkQueue[RepeatRun]):
    """One run for each seed, so that all workers have something to do.

    What has ended is not done again when a sweep goes on.

    Args:
        make: an order, by its number, its folder, what the keys are set to, and seeds.
    """

    def __init__(
        self,
        make: Callable[..., TrialOrder],
        workers: TrialWorkers,
        sweep: SweepFolder,
        emit: Emit,
        stop: Callable[[], bool],
    ) -> None:
        super().__init__(workers, stop)
        self.make, self.emit, self.spec = make, emit, sweep.sweep()
        self.folder, self.metric = sweep.path / "confirm", self.spec.objectives[0].metric
        self.done, self.failed = dict[str, float | None](), dict[str, str]()
        self.waiting: list[RepeatRun] = []
        self._orders = _FIRST_ORDER

    def confirmed(self, chosen: FrozenTrial, seeds: Sequence[int]) -> Confirmed:
        """The first objective of the best trial and of the experiment as it is, mean ± std.

        Raises:
            RunStopped, ClusterError: as of `carry_out`.
        """
        names = {"best": f"best-{chosen.number}", "as_it_is": "as-it-is"}
        sets = {"best": values_of(chosen), "as_it_is": {}}
        wanted = [
            RepeatRun(of, seed, f"{name}-seed{seed}", sets[of])
            for of, name in names.items()
            for seed in seeds
        ]
        for again in wanted:
            for path in self.folder.glob(f"{again.name}-*"):
                self._keep(again, path, kept(path))
        self.waiting = [again for again in wanted if again.name not in self.done]
        self.emit(Confirming(seeds=sorted(seeds), runs=len(self.waiting)))
        self.carry_out("stopped by the user while the best was confirmed")
        values: dict[str, dict[int, float]] = {"best": {}, "as_it_is": {}}
        for again in wanted:
            if (value := self.done.get(again.name)) is not None:
                values[again.of][again.seed] = value
        return Confirmed(
            metric=self.metric,
            seeds=list(seeds),
            optimistic=chosen.values[0],
            failed=self.failed,
            best=_spread(values["best"]),
            as_it_is=_spread(values["as_it_is"]),
        )

    def _keep(self, again: RepeatRun, run: Path, result: ResultFacts | None) -> None:
        if result is not None:
            self.done[again.name] = measured(result, run, simulated=False)[self.metric]

    def is_over(self) -> bool:
        return not self.waiting

    def begin(self, worker: int) -> None:
        again = self.waiting.pop(0)
        again.tries += 1
        self._orders += 1
        before = list(self.folder.glob(f"{again.name}-*"))
        again.path = self.folder / f"{again.name}-{len(before)}"
        order = self.make(self._orders, again.path, again.values, seeds=[again.seed])
        self.running[self._orders] = again
        begins = RepeatStarted(
            name=again.name,
            setting=again.of,
            seed=again.seed,
            run=str(again.path),
            set=again.values,
        )
        self.emit(begins)
        self.workers.send(worker, order)

    def hear(self, end: TrialEnded) -> None:
        if end.order not in self.running:
            return
        again = self.running.pop(end.order)
        self.emit(RepeatDone(run=str(again.path), state=end.state))
        if end.state == "finished":
            self._keep(again, again.path, end.result)
        elif end.state == "lost" and again.tries <= self.spec.retries:
            self.waiting.insert(0, again)
        else:
            self.failed[again.name] = str(end.error)
            self.emit(Warned(message=f"{again.path} did not confirm: {end.error}"))


def _spread(by_seed: Mapping[int, float]) -> Spread:
    values = list(by_seed.values())
    return Spread(
        mean=fmean(values) if values else None,
        std=stdev(values) if len(values) > 1 else None,
        values=values,
        seeds=list(by_seed),
    )
