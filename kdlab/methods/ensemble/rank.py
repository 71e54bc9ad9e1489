"""One worker with its local model, as a process: `python -m kdlab.methods.ensemble.rank`."""

from functools import partial

from kdlab.experiment.rank_process import RankProcess, main
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.method import Ensemble
from kdlab.methods.ensemble.model_workers import RoundOrder, RoundReport, execute
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.soft_labels.source import SoftLabelSource


class LocalModelRank(RankProcess[RoundOrder]):
    """Process that carries out the orders of kdlab/methods/ensemble/processes.py."""

    takes = RoundOrder

    _worker: LocalWorker | None = None
    _source: SoftLabelSource | None = None

    def generation(self, order: RoundOrder) -> RoundReport:
        """Carry out one order."""
        if self._worker is None or self._source is None:
            run, beat = self._ensemble_run, partial(self.beat, 1)
            emit, changes = self.log.emit, self.changes
            self._worker = run.worker(order.worker, self.folder, emit, changes, beat)
            self._worker.restore(order.round.number, order.trained)
            pool, run_id = order.labels, self.run.run_id
            self._source = run.source(self._worker, run_id, pool, self._waits)
        return execute(self._worker, order, self._source)

    @property
    def _ensemble_run(self) -> EnsembleRun:
        method = self.spec.method
        assert isinstance(method, Ensemble)
        return EnsembleRun(method, self.setup, self.member)

    def _waits(self) -> bool:
        self.beat(1, self._worker.sgd.steps if self._worker else 0)
        return self.stops()


if __name__ == "__main__":
    main(LocalModelRank)
