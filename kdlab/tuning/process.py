"""A sweep from inside; `kdlab/run/process/child.py` starts it."""

import gc
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import optuna

from kdlab.checks import checked
from kdlab.cluster.hosted_ranks import DaskHosts
from kdlab.cluster.transport.known_schedulers import require_known
from kdlab.cluster.transport.wire import ask
from kdlab.config.check import construct
from kdlab.config.home import runs_folder
from kdlab.errors import SchedulerUnreachable
from kdlab.events.log import MemberLog
from kdlab.events.sweeps import Searched, SweepDone, SweepStarted
from kdlab.experiment.pools import Pools
from kdlab.experiment.setup import TrainingSetup
from kdlab.experiment.spec import ExperimentSpec
from kdlab.report.check_table import worst_first
from kdlab.run.experiment import Experiment
from kdlab.run.handle.run import create_folder
from kdlab.run.process.execution import Job, execute
from kdlab.simulate.kind import SimulationSpec
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.children import Child
from kdlab.tuning import best, figures
from kdlab.tuning.driver import Driver
from kdlab.tuning.folder import SweepFolder, open_study, sweep_hash
from kdlab.tuning.outcome import BestTrial, SweepOutcome
from kdlab.tuning.plan import gpus, jobs_of, shares_pool
from kdlab.tuning.repeat import Confirmation
from kdlab.tuning.space import Space, Values
from kdlab.tuning.trial_workers import StartWorker, TrialOrder, TrialWorkers
from kdlab.tuning.verdicts import metrics_of


class SweepProcess(Job):
    """Search, then confirm, draw, save. Each of these is skipped if it is there already."""

    done, late = SweepDone, "MLflow is slow; the rest is not written"

    def __init__(
        self,
        folder: SweepFolder,
        stop: Callable[[], bool],
        start: StartWorker = Child,
    ) -> None:
        super().__init__(folder, stop)
        self.folder, self.start = folder, start
        self.spec = folder.sweep()
        self.hash = sweep_hash(self.spec)
        self.space = Space(self.spec)
        self.uri = self.spec.tracking.store(runs_folder())
        self.pool: PoolAddress | None = None

    def main(self) -> SweepOutcome:
        self._announce()
        study = open_study(self.folder, self.spec, self.hash)
        jobs = jobs_of(self.spec, self.space)
        with ExitStack() as stack:
            workers = self._workers(jobs, stack)
            if shares_pool(self.spec, self.space):
                self._start_pool(stack)
            driver = Driver(
                space=self.space,
                study=study,
                workers=workers,
                make=self.order,
                emit=self.log.emit,
                stop=self.stop,
                first=self._first(study),
                trouble=self._trouble,
            )
            driver.run()
            chosen = best.best_of(study, self.spec)
            self.log.emit(Searched(best=chosen.number, early=driver.ended_early))
            if self.spec.keep == "best":
                best.drop_weights(study, self.folder, chosen)
            saved = best.save(self.folder, self.spec, self.space, chosen)
            pictures = self.folder.path / "figures"
            drawn = figures.draw(study, self.spec, pictures, self.log.emit)
            again, wanted = None, self.spec.confirm
            if wanted is not None and not self.spec.simulated:
                repeats = Confirmation(
                    self.run_order, workers, self.folder, self.log.emit, self.stop
                )
                again = repeats.confirmed(chosen, wanted.seeds)
        verdict = best.verdict(study, self.spec, chosen, again)
        found = checked(best.facts(study, self.spec, chosen, again, verdict))
        for finding in found:
            self.log.emit(finding)
        return SweepOutcome(
            study=self.folder.run_id,
            objectives=[o.metric for o in self.spec.objectives],
            directions=self.spec.directions(),
            best=BestTrial(
                **asdict(best.row(chosen, self.spec)), metrics=metrics_of(chosen)
            ),
            front=[best.row(t, self.spec) for t in best.front(study, self.spec)],
            trials=best.counts(study),
            sweep=self.name,
            confirmed=again,
            verdict=verdict,
            checks=[one.to_json() for one in worst_first(found)],
            saved=[str(p) for p in saved],
            figures=[str(p) for p in drawn],
            jobs=jobs,
            driver_ms_per_trial=driver.ms_per_trial,
            ended_early=driver.ended_early,
            wall_seconds=self.seconds,
            storage=str(self.folder.storage(self.spec.storage)),
            tracking_uri=self.uri,
            sweep_dir=str(self.folder.path),
        )

    # Orders

    def order(self, number: int, values: Values) -> TrialOrder:
        """The order that starts this trial."""
        if self.spec.simulated:
            tree = self.space.composed(values)
            construct(SimulationSpec, tree)
            return TrialOrder(number=number, simulation=tree.data)
        return self.run_order(number, self.folder.trial(number), values)

    def run_order(
        self, number: int, path: Path, values: Mapping[str, object], **more: object
    ) -> TrialOrder:
        """The order that starts a run in a folder of its own."""
        tracking = {
            "tracking.enabled": self.uri is not None,
            "tracking.uri": self.uri,
            "tracking.experiment": self.group,
        }
        tree = self.space.composed(values, more, tracking)
        experiment = Experiment(replace(tree, name=self.name))
        run, _ = create_folder(experiment, "starting", path)
        return TrialOrder(number=number, run=str(run.path), pool=self.pool)

    @property
    def group(self) -> str:
        """The experiment in MLflow."""
        return self.spec.tracking.experiment or self.name

    # Surroundings

    def _workers(self, jobs: int, stack: ExitStack) -> TrialWorkers:
        """Here, or on the workers of a Dask cluster."""
        start, own, cluster = self.start, gpus(), self.spec.workers
        if cluster is not None:
            require_known("workers", cluster.address)
            hosts = DaskHosts(cluster.address, cluster.certificates())
            stack.callback(hosts.close)
            start, own = hosts.start, ()
        folder, simulates = self.folder.path / "workers", self.spec.simulated
        workers = TrialWorkers(jobs, folder, simulates=simulates, gpus=own, start=start)
        stack.callback(workers.close)
        return workers

    def _start_pool(self, stack: ExitStack) -> None:
        """One for all trials: their teacher is the same."""
        tree = self.space.composed({})
        path = self.folder.path / "pool" / f"{int(self.begin)}"
        run, _ = create_folder(Experiment(replace(tree, name=self.name)), "pool", path)
        setup = TrainingSetup(
            construct(ExperimentSpec, tree),
            emit=self.log.emit,
            emit_teacher=MemberLog(self.log, "teacher").emit,
            stop=self.stop,
        )
        pools = Pools(run, setup, self.log.emit, self.stop, others=True)
        stack.callback(pools.close)
        self.pool = PoolAddress.from_pool(pools.whole())

    def _first(self, study: optuna.Study) -> list[tuple[str, Values]]:
        """Settings of an earlier sweep, for a study that has no trial yet."""
        if study.get_trials(deepcopy=False):
            return []
        return [("of an earlier sweep", v) for v in best.earlier(self.spec, self.space)]

    def _trouble(self) -> str | None:
        """What would have every further trial fail."""
        if self.pool is None:
            return None
        try:
            ask(self.pool.address, "kdlab_status", tls=self.pool.tls)
        except SchedulerUnreachable:
            return f"The teacher pool of all trials at {self.pool.address} is gone."
        return None

    def _announce(self) -> None:
        self.log.emit(
            SweepStarted(
                study=self.folder.run_id,
                sweep=self.name,
                group=self.group,
                tracking_uri=self.uri,
                spec=self.spec.to_dict(),
                spec_hash=self.hash,
                objectives=[o.metric for o in self.spec.objectives],
                directions=self.spec.directions(),
                optuna=optuna.__version__,
            )
        )
        if self.uri is not None:
            self.tracker.start(self.folder.path)

    def resume_hint(self) -> str:
        return (
            f"All trials that had ended are in {self.folder.path}; those under way are tried "
            "again. Make room, then\n"
            f"    {self.folder.resume_command}"
        )


def main(path: str, stop: Callable[[], bool]) -> int:
    """To the end; the exit code. The status file says the same."""
    folder = SweepFolder(Path(path))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    gc.freeze()  # what was imported stays: looking through it takes 0.2 s each time
    try:
        return execute(folder, lambda: SweepProcess(folder, stop))
    finally:
        gc.unfreeze()
