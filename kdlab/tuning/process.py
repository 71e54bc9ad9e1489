"""The process of a sweep; `kdlab/run/process/child.py` starts it."""

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
    """Search, save, draw and confirm. Trials and repeats that exist are not repeated."""

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
            figure_folder = self.folder.path / "figures"
            drawn = figures.draw(study, self.spec, figure_folder, self.log.emit)
            confirmed, confirm = None, self.spec.confirm
            if confirm is not None and not self.spec.simulated:
                confirmation = Confirmation(
                    self.run_order, workers, self.folder, self.log.emit, self.stop
                )
                confirmed = confirmation.confirmed(chosen, confirm.seeds)
        verdict = best.verdict(study, self.spec, chosen, confirmed)
        findings = checked(best.facts(study, self.spec, chosen, confirmed, verdict))
        for finding in findings:
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
            confirmed=confirmed,
            verdict=verdict,
            checks=[finding.to_json() for finding in worst_first(findings)],
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
        """Create the order of a trial."""
        if self.spec.simulated:
            tree = self.space.composed(values)
            construct(SimulationSpec, tree)
            return TrialOrder(number=number, simulation=tree.data)
        return self.run_order(number, self.folder.trial(number), values)

    def run_order(
        self, number: int, path: Path, values: Mapping[str, object], **more: object
    ) -> TrialOrder:
        """Create a run folder, and the order that trains it."""
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
        """Name of the MLflow experiment."""
        return self.spec.tracking.experiment or self.name

    # Workers and pool

    def _workers(self, jobs: int, stack: ExitStack) -> TrialWorkers:
        """Start workers on this machine or on a Dask cluster."""
        start, visible, cluster = self.start, gpus(), self.spec.workers
        if cluster is not None:
            require_known("workers", cluster.address)
            hosts = DaskHosts(cluster.address, cluster.certificates())
            stack.callback(hosts.close)
            start, visible = hosts.start, ()
        folder, simulates = self.folder.path / "workers", self.spec.simulated
        workers = TrialWorkers(jobs, folder, simulates=simulates, gpus=visible, start=start)
        stack.callback(workers.close)
        return workers

    def _start_pool(self, stack: ExitStack) -> None:
        """Start one pool for all trials, which have the same teacher."""
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
        self.pool = PoolAddress.from_pool(pools.teacher_pool())

    def _first(self, study: optuna.Study) -> list[tuple[str, Values]]:
        """Return the best settings of an earlier sweep, for a study without trials."""
        if study.get_trials(deepcopy=False):
            return []
        return [("of an earlier sweep", v) for v in best.earlier(self.spec, self.space)]

    def _trouble(self) -> str | None:
        """Return a cause that would fail all further trials, or None."""
        if self.pool is None:
            return None
        try:
            ask(self.pool.address, "kdlab_status", tls=self.pool.tls)
        except SchedulerUnreachable:
            return f"The teacher pool of all trials at {self.pool.address} does not answer."
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
            f"Trials that ended are saved in {self.folder.path}; running ones will be retried. "
            "Free disk space, then run\n"
            f"    {self.folder.resume_command}"
        )


def main(path: str, stop: Callable[[], bool]) -> int:
    """Run a sweep to its end; return the exit code, which the status file has, too."""
    folder = SweepFolder(Path(path))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    gc.freeze()  # excludes imported modules, which take 0.2 s a collection
    try:
        return execute(folder, lambda: SweepProcess(folder, stop))
    finally:
        gc.unfreeze()
