"""One worker with its local model, as a process: `python -m kdlab.run.local_rank`."""

from dataclasses import asdict
from typing import Any

from kdlab.papers.ec_dnn.timetable import Round
from kdlab.run.ensemble import Contest
from kdlab.run.rank_process import RankProcess, main
from kdlab.soft_labels.source import KnownPool, SoftLabelSource
from kdlab.train.local.crew import Order, carry_out, files
from kdlab.train.local.worker import LocalWorker
from kdlab.train.steering import CONTROL, Steering


class LocalRank(RankProcess):
    """Carries out the orders of kdlab/run/crew.py."""

    _worker: LocalWorker | None = None
    _source: SoftLabelSource | None = None

    def generation(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """One order; what it came to, as plain values."""
        told = Order(
            **order["order"]
            | {
                "round": Round(**order["order"]["round"]),
                "models": files(order["order"]["models"]),
            }
        )
        worker = self._of(told)
        if self._source is None:
            pool = None if order["pool"] is None else KnownPool(**order["pool"])
            self._source = self._contest.source(worker, self.run.run_id, pool, self._waits)
        did = carry_out(worker, told, self._source)
        return asdict(did)

    @property
    def _contest(self) -> Contest:
        return Contest(self.ingredients, self.member)

    def _of(self, order: Order) -> LocalWorker:
        if self._worker is None:
            self._worker = self._contest.worker(
                order.worker,
                self.folder,
                self.log.emit,
                Steering(self.run.path / CONTROL, self.member.name, self.run.since),
                lambda step: self.beat(1, step),
            )
            self._worker.go_to(order.round.number)
        return self._worker

    def _waits(self) -> bool:
        self.beat(1, self._worker.steps if self._worker else 0)
        return self.stops()


if __name__ == "__main__":
    main(LocalRank)
