"""Confirm the best trial of a search with fresh seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from optuna.trial import FrozenTrial

from kdlab.events.event import Emit
from kdlab.events.general import Warned
from kdlab.events.sweeps import Confirming, RepeatDone, RepeatStarted
from kdlab.tuning.driver import saved_result
from kdlab.tuning.folder import SweepFolder
from kdlab.tuning.metrics import ResultFacts, measured
from kdlab.tuning.outcome import Confirmed, Spread
from kdlab.tuning.trial_workers import TrialEnded, TrialOrder, TrialWorkers, WorkQueue
from kdlab.tuning.verdicts import values_of

_FIRST_ORDER = 1_000_000  # above all trials


@dataclass(slots=True)
class RepeatRun:
    """A run with a fresh seed."""

    setting: str  # "best" or "as_it_is"
    seed: int
    name: str  # stem of its folder
    values: Mapping[str, object]
    tries: int = 0
    path: Path = Path()  # folder of the newest try


class Confirmation(WorkQueue[RepeatRun]):
    """Repeat runs, one for each seed, so that all workers are busy.

    A sweep that continues does not repeat finished runs.

    Args:
        make: creates an order from its number, folder, values and seeds.
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
        """Measure the first objective of the best trial and of the unchanged experiment.

        Raises:
            RunStopped, ClusterError: from `carry_out`.
        """
        names = {"best": f"best-{chosen.number}", "as_it_is": "as-it-is"}
        settings = {"best": values_of(chosen), "as_it_is": {}}
        repeats = [
            RepeatRun(setting, seed, f"{name}-seed{seed}", settings[setting])
            for setting, name in names.items()
            for seed in seeds
        ]
        for repeat in repeats:
            for path in self.folder.glob(f"{repeat.name}-*"):
                self._record(repeat, path, saved_result(path))
        self.waiting = [repeat for repeat in repeats if repeat.name not in self.done]
        self.emit(Confirming(seeds=sorted(seeds), runs=len(self.waiting)))
        self.carry_out("stopped by the user during the confirmation")
        values: dict[str, dict[int, float]] = {"best": {}, "as_it_is": {}}
        for repeat in repeats:
            if (value := self.done.get(repeat.name)) is not None:
                values[repeat.setting][repeat.seed] = value
        return Confirmed(
            metric=self.metric,
            seeds=list(seeds),
            optimistic=chosen.values[0],
            failed=self.failed,
            best=_spread(values["best"]),
            as_it_is=_spread(values["as_it_is"]),
        )

    def _record(self, repeat: RepeatRun, run: Path, result: ResultFacts | None) -> None:
        if result is not None:
            self.done[repeat.name] = measured(result, run, simulated=False)[self.metric]

    def is_over(self) -> bool:
        return not self.waiting

    def begin(self, worker: int) -> None:
        repeat = self.waiting.pop(0)
        repeat.tries += 1
        self._orders += 1
        earlier = list(self.folder.glob(f"{repeat.name}-*"))
        repeat.path = self.folder / f"{repeat.name}-{len(earlier)}"
        order = self.make(self._orders, repeat.path, repeat.values, seeds=[repeat.seed])
        self.running[self._orders] = repeat
        started = RepeatStarted(
            name=repeat.name,
            setting=repeat.setting,
            seed=repeat.seed,
            run=str(repeat.path),
            set=repeat.values,
        )
        self.emit(started)
        self.workers.send(worker, order)

    def on_ended(self, end: TrialEnded) -> None:
        if end.order not in self.running:
            return
        repeat = self.running.pop(end.order)
        self.emit(RepeatDone(run=str(repeat.path), state=end.state))
        if end.state == "finished":
            self._record(repeat, repeat.path, end.result)
        elif end.state == "lost" and repeat.tries <= self.spec.retries:
            self.waiting.insert(0, repeat)
        else:
            self.failed[repeat.name] = str(end.error)
            self.emit(Warned(message=f"{repeat.path} did not confirm: {end.error}"))


def _spread(by_seed: Mapping[int, float]) -> Spread:
    values = list(by_seed.values())
    return Spread(
        mean=fmean(values) if values else None,
        std=stdev(values) if len(values) > 1 else None,
        values=values,
        seeds=list(by_seed),
    )
