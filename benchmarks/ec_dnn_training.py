"""One training of `kdlab bench ec_dnn`, as a process of its own."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.ec_dnn import BenchedMethod, MeasuredSeconds, TrainingConfig
from kdlab.codec import plain
from kdlab.errors import Diverged
from kdlab.events.event import unheard
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.local_job import Prices
from kdlab.methods.ensemble.method import Ensemble
from kdlab.methods.ensemble.model_workers import WorkersHere
from kdlab.methods.ensemble.round_driver import RoundDriver
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.report.methods import ErrorCurve
from kdlab.run.experiment import load
from kdlab.supervision.children import announce, configured

_STEPS = 40
_ROWS = 2048


def main() -> None:
    config = configured(TrainingConfig)
    method = config.method or BenchedMethod(name="costs")
    own = {"method.compare": {"own": method.variant()}, "method.processes": False}
    experiment = load(config.experiment, *config.overrides, own)
    spec = experiment.spec
    setup = TrainingSetup(spec)
    member = next(m for m in spec.members() if m.source_name == "own")
    assert isinstance(spec.method, Ensemble)
    ensemble_run = EnsembleRun(
        spec.method,
        setup,
        replace(member, source_name="own", seed=config.seed),
        config.prices,
    )
    folder = config.folder
    if config.method is None:
        announce(done=plain(_costs(ensemble_run, folder)))
        return
    processes = WorkersHere(
        lambda number: ensemble_run.worker(number, folder, unheard),
        lambda worker: ensemble_run.source(worker, "bench", None),
    )
    driver = RoundDriver(ensemble_run.training(folder, unheard), processes)
    try:
        driver.run()
    except Diverged as error:
        announce(say=f"{method.name}: {error}")
        announce(done=plain(ErrorCurve([], driver.account)))
        return
    announce(done=plain(ErrorCurve(driver.looks, driver.account)))


def _costs(ensemble_run: EnsembleRun, folder: Path) -> MeasuredSeconds:
    """Medians of the seconds its device is busy, on the images themselves."""
    worker = ensemble_run.worker(0, folder, unheard)
    with closing(ensemble_run.source(worker, "bench", None)) as source:
        steps = []
        worker.model.train()
        for batch in worker.stream.take(source, _STEPS):
            begin = worker.sgd.cpu()
            worker.sgd.one(batch)
            steps.append(worker.sgd.cpu() - begin)
    return MeasuredSeconds(
        prices=Prices(step_s=float(np.median(steps[5:])), row_s=_forward_s(worker)),
        batch=ensemble_run.recipe.batch,
        workers=ensemble_run.method.workers,
    )


def _forward_s(worker: LocalWorker) -> float:
    data = worker.job.samples.data
    inputs = data.inputs[data.train[:_ROWS]]
    taken = []
    for _ in range(5):
        begin = worker.sgd.cpu()
        worker.sgd.probabilities(inputs)
        taken.append((worker.sgd.cpu() - begin) / len(inputs))
    torch.manual_seed(0)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
