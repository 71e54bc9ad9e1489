"""Local models of an ensemble in the process of the test, on the small digits."""

import json

import torch

from kdlab.data.samples import Shard, planned
from kdlab.data.shards import Shards
from kdlab.events.log import parse
from kdlab.methods.ensemble.exchange import fetch
from kdlab.methods.ensemble.local_job import LocalJob, UnitCosts
from kdlab.methods.ensemble.model_workers import InProcessWorkers
from kdlab.methods.ensemble.round_driver import RoundDriver, Training
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.models.patch_net import PatchNet
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule, StepWeight
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.train.aggregation.ensemble import EnsembleAggregation
from kdlab.train.compression.distillation import Distillation
from kdlab.train.recipe import Recipe

MODEL = PatchNet(patch=8, width=32)


class Events(list):
    def emit(self, event):
        self.append(parse(json.loads(json.dumps(event.facts(), default=float))))

    def of(self, kind):
        return [e for e in self if kind == e.KIND]


class Case:
    """A training of some workers on the small digits."""

    def __init__(self, digits, folder, aggregation, table, workers=2, **recipe):
        self.data, self.spec = digits
        self.folder, self.aggregation, self.table = folder, aggregation, table
        self.workers, self.events = workers, Events()
        options = {"batch": 20, "lr": 0.1, "device": "cpu", "threads": 1, "epochs": 4}
        self.recipe = aggregation.local_recipe(Recipe(**options | recipe))
        self.start_equal = aggregation.averages
        self.prices: UnitCosts | None = None
        self.local_workers: dict[int, LocalWorker] = {}
        self.stop = lambda: False  # in the middle of a round

    def samples(self, worker):
        shard = Shard(Shards(), worker, self.workers, 20)
        return planned(
            self.data, self.spec.to_dict(), shard=shard, batch=20, seed=3, epochs=99
        )

    def model(self, worker):
        torch.manual_seed(5 if self.start_equal else 5 + worker)
        return MODEL.build(10, 1)

    def make(self, worker):
        scratch = MODEL.build(10, 1)
        self.local_workers[worker] = LocalWorker(
            LocalJob(
                worker=worker,
                recipe=self.recipe,
                model=self.model(worker),
                scratch=lambda _: scratch,
                samples=self.samples(worker),
                timetable=self.table,
                aggregation=self.aggregation,
                loss=None,
                seed=3,
                folder=self.folder,
                spec_hash="h",
                emit=self.events.emit,
                stop=lambda: self.stop(),  # noqa: PLW0108  # set later
                prices=self.prices,
            )
        )
        return self.local_workers[worker]

    def direction(self, model_workers=None, **rest):
        training = Training(
            workers=self.workers,
            timetable=self.table,
            combining=self.aggregation.combining,
            data=self.data,
            folder=self.folder,
            emit=self.events.emit,
            **{"keep_every_s": 0.0} | rest,
        )
        return RoundDriver(training, model_workers or self.model_workers())

    def model_workers(self):
        return InProcessWorkers(self.make, lambda w: NoTeacherSource(w.job.samples))

    def run(self, **rest):
        return self.direction(**rest).run()


def ec(iterations=24, tau=8, alpha=0.6, weight=StepWeight(), **compression):  # noqa: B008
    spec = EnsembleAggregation(
        tau=tau,
        diversity_weight=alpha,
        compression=Distillation(
            weight=weight.start, risen_weight=weight.end, **compression
        ),
    )
    table = RoundSchedule(
        iterations=iterations,
        tau=tau,
        compresses=True,
        p_iterations=compression.get("p_iterations"),
        compression_weight=weight,
        diversity_weight=alpha,
    )
    return spec, table


def weights(outcome, worker=0):
    return fetch(next(m for m in outcome.models if m.worker == worker))


def apart(first, second):
    assert first.keys() == second.keys()
    return max(float((first[k] - second[k]).abs().max()) for k in first)
