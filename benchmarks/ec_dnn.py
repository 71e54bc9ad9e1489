"""`kdlab bench ec_dnn`: EC-DNN beside MA-DNN, E-DNN and S-DNN, at equal time of computing.

Every method gets so many iterations that training, relabelling and compressing take the same
time on machines side by side (section 4.3); communication comes on top, and counts in speeds.
What a step and a relabelled row cost is measured first, with nothing beside it, and the time of
a training is what it did times that; so trainings go on beside each other, as many as there
are cores, each with its workers one after the other. tau, and of EC-DNN alpha, p and beta, are
chosen on validation images with the first seed; test images decide nothing.
"""

import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeVar

import numpy as np
import torch

from benchmarks.harness import Scratch, quiet, report
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
from kdlab.papers.ec_dnn.metrics import speed, worse_share
from kdlab.report.figures import Figure, Report, Say, figure
from kdlab.report.methods import ErrorCurve
from kdlab.run.experiment import load
from kdlab.supervision.children import announce, configured

EXPERIMENT = "ec_dnn/cifar10_cpu"
BUDGET_S = 20.0
MA_TAUS = (16, 64, 200)

# What EC-DNN is tried with: communications, alpha, p, and beta of Eq. 6 (the paper: 0.4, then
# 0.6): the paper's, and without the term of Eq. 5, which costs a relabelling of every batch. tau is
# large: a compression of a step or two says nothing.
EC_TRIED = (
    (10, 0.0, 0.05, (0.4, 0.6)),
    (10, 0.0, 0.1, (0.4, 0.6)),
    (25, 0.0, 0.1, (0.4, 0.6)),
    (10, 0.0, 0.2, (1.0, 1.0)),
    (10, 0.2, 0.1, (0.4, 0.6)),
    (10, 0.6, 0.1, (0.4, 0.6)),
)
_PATIENCE_S = 1200.0
_PRICED_STEPS, _PRICED_ROWS = 40, 2048  # that say what a step and a row cost
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeasuredSeconds:
    """Measured, with nothing beside it."""

    prices: Prices
    batch: int
    workers: int

    def iterations(self, budget_s: float, *, diversity: float = 0.0, p: float = 0.0) -> int:
        """As many as fit into the budget."""
        rows = self.batch * self.workers * self.prices.row_s
        each = self.prices.step_s * (1 + p) + p * rows + (rows if diversity else 0.0)
        return max(1, int(budget_s / each))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedMethod:
    """A method with its settings."""

    name: str  # for people
    aggregation: Literal["none", "model_average", "ensemble"] = "none"  # of kdlab/train
    iterations: int = 1  # local ones
    workers: int | None = None  # None takes as many as the experiment has
    tau: int | None = None  # iterations between communications; None does without them
    alpha: float = 0.0  # of Eq. 5
    p: float = 0.0  # share of the local data that is compressed on
    beta: tuple[float, float] = (0.0, 0.0)  # of Eq. 6, at the start and later

    def variant(self) -> dict[str, object]:
        """What `method.compare` has of it."""
        aggregation: dict[str, object] = {"type": f"train/aggregation/{self.aggregation}"}
        if self.tau is not None:
            aggregation["tau"] = self.tau
        if self.aggregation == "ensemble":
            aggregation["diversity_weight"] = self.alpha
            aggregation["compress_last"] = True  # as Algorithm 1 has it: _L is compressed
            aggregation["compression"] = {
                "type": "train/compression/distillation",
                "p_fraction": self.p,
                "weight": self.beta[0],
                "risen_weight": self.beta[1],
            }
        found: dict[str, object] = {
            "aggregation": aggregation,
            "iterations": self.iterations,
        }
        return found if self.workers is None else found | {"workers": self.workers}


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """What a process trains; without a method it measures what a step and a row cost."""

    overrides: list[str]
    folder: Path
    method: BenchedMethod | None
    seed: int
    experiment: str = EXPERIMENT
    prices: Prices | None = None  # of all work


def measure(
    repeats: int = 5,
    say: Say = quiet,
    overrides: Sequence[str] = (),
    experiment: str = EXPERIMENT,
    budget_s: float = BUDGET_S,
) -> Report:
    """All figures, with so many seeds.

    overrides: of this experiment, a config of `methods/ensemble`.
    budget_s: overall time of each training, on machines side by side.
    """
    begin = time.monotonic()
    with Scratch() as scratch:
        trainings = _Trainings(scratch, experiment, list(overrides), say)
        (costs,) = trainings.of([(None, 0)], MeasuredSeconds)
        prices = trainings.prices = costs.prices
        say(
            f"a step takes {1e3 * prices.step_s:.1f} ms, a row forward "
            f"{1e6 * prices.row_s:.0f} us"
        )
        best, first = _first(trainings, costs, budget_s, say)
        seeds = range(1, repeats)
        others = trainings.of(
            [(case, seed) for seed in seeds for case in best.values()], ErrorCurve
        )
        trained = {
            name: [first[name], *others[number :: len(best)]]
            for number, name in enumerate(best)
        }
        whole = [k for k in range(repeats) if all(own[k].looks for own in trained.values())]
        if len(whole) < repeats:
            say(f"{len(whole)} of {repeats} seeds count: with the others a method diverged")
        trained = {name: [own[k] for k in whole] for name, own in trained.items()}
    say(f"done in {time.monotonic() - begin:.0f} s")
    return report("ec_dnn", _figures(trained))


def _first(
    trainings: "_Trainings", costs: MeasuredSeconds, budget_s: float, say: Say
) -> tuple[dict[str, BenchedMethod], dict[str, ErrorCurve]]:
    """The settings of each method that are best on validation, with the first seed."""
    plain = costs.iterations(budget_s)
    cases = {
        "s": [BenchedMethod(name="s", iterations=plain, workers=1)],
        "e": [BenchedMethod(name="e", iterations=plain)],
        "ma": [
            BenchedMethod(
                name=f"ma tau {tau}",
                aggregation="model_average",
                iterations=plain,
                tau=min(tau, plain),
            )
            for tau in MA_TAUS
        ],
        "ec": [_ec(costs, budget_s, *tried) for tried in EC_TRIED],
    }
    every = [(name, case) for name, own in cases.items() for case in own]
    found = trainings.of([(case, 0) for _, case in every], ErrorCurve)
    return chosen(every, found, say)


def chosen(
    cases: Sequence[tuple[str, BenchedMethod]],
    found: Sequence[ErrorCurve],
    say: Say = quiet,
) -> tuple[dict[str, BenchedMethod], dict[str, ErrorCurve]]:
    """The setting with the smallest validation error of each name, and its training.

    Args:
        cases: names and settings.
        found: the training of each; one that diverged has no looks.
        say: gets a line for each.

    Raises:
        Diverged: all of one name did.
    """
    best: dict[str, tuple[float, BenchedMethod, ErrorCurve]] = {}
    for (name, case), result in zip(cases, found, strict=True):
        if not result.looks:
            continue
        last = result.last
        say(
            f"{case.name}: validation error {last.validation_global:.2f} %, test "
            f"{last.global_:.2f} % (_G) {last.chosen:.2f} % (_L), "
            f"{last.iterations} iterations, {last.parallel_s:.1f} s"
        )
        if name not in best or last.validation_global < best[name][0]:
            best[name] = last.validation_global, case, result
    if lost := sorted({name for name, _ in cases} - set(best)):
        raise Diverged(
            f"No training of {', '.join(lost)} came to its end: their losses are no numbers. "
            "Lower train.lr of the experiment."
        )
    return (
        {name: case for name, (_, case, _) in best.items()},
        {name: result for name, (_, _, result) in best.items()},
    )


def _ec(
    costs: MeasuredSeconds,
    budget_s: float,
    communications: int,
    alpha: float,
    p: float,
    beta: tuple[float, float],
) -> BenchedMethod:
    iterations = costs.iterations(budget_s, diversity=alpha, p=p)
    tau = max(1, iterations // communications)
    return BenchedMethod(
        name=f"ec tau {tau} alpha {alpha:g} p {p:g} beta {beta[0]:g}, {beta[1]:g}",
        aggregation="ensemble",
        iterations=iterations,
        tau=tau,
        alpha=alpha,
        p=p,
        beta=beta,
    )


@dataclass(slots=True)
class _Trainings:
    """Trainings as processes, as many at a time as there are cores."""

    scratch: Scratch
    experiment: str
    overrides: list[str]
    say: Say
    prices: Prices | None = None  # once they are known
    number: int = 0  # of the newest

    def of(
        self, cases: Sequence[tuple[BenchedMethod | None, int]], kind: type[T]
    ) -> list[T]:
        """What each found with its seed, in their order; None measures what steps cost."""
        told = []
        for method, seed in cases:
            self.number += 1
            own = self.scratch.folder / f"{self.number}"
            own.mkdir()
            told.append(
                TrainingConfig(
                    self.overrides, own, method, seed, self.experiment, self.prices
                )
            )
        return self.scratch.results(
            "benchmarks.ec_dnn",
            told,
            kind,
            at_once=os.cpu_count() or 1,
            patience_s=_PATIENCE_S * max(1, len(told)),
            say=self.say,
        )


def _figures(trained: dict[str, list[ErrorCurve]]) -> list[Figure]:
    keys = {"g": "global_", "l": "chosen"}  # fields of the errors, as the paper calls them

    def last(name: str, key: str) -> list[float]:
        return [getattr(result.last, key) for result in trained[name]]

    found = [figure("error_pct/s", last("s", "chosen"), "%")]
    for name in ("ec", "ma", "e"):
        for of, key in keys.items():
            found.append(figure(f"error_pct/{name}_{of}", last(name, key), "%"))
    for other, of in (("ma", "g"), ("e", "g"), ("ma", "l")):
        pairs = zip(last("ec", keys[of]), last(other, keys[of]), strict=True)
        label = f"points_better/ec_{of}_than_{other}_{of}"
        found.append(figure(label, [b - a for a, b in pairs], "points"))
    baseline = [result.curve("global_") for result in trained["ma"]]
    for name, of in (("ec", "g"), ("ec", "l"), ("e", "g")):
        own = [result.curve(keys[of]) for result in trained[name]]
        values = [speed(mine, ma) for mine, ma in zip(own, baseline, strict=True)]
        found.append(figure(f"speed/{name}_{of}", values, "times"))
        counted = [
            speed(mine.curve(keys[of], "iterations"), ma.curve("global_", "iterations"))
            for mine, ma in zip(trained[name], trained["ma"], strict=True)
        ]
        found.append(figure(f"speed_in_iterations/{name}_{of}", counted, "times"))
    ensembles = [*trained["ec"], *trained["e"]]
    for name, those in (("ensemble", ensembles), ("model_average", trained["ma"])):
        # Of rounds at whose end the global model is worse than its models on average (Eq. 7).
        shares = [worse_share(result.differences()) for result in those]
        found.append(figure(f"worse_than_locals_share/{name}", shares, "share"))
    # The same by the loss, where Eq. 3 allows none for an ensemble.
    apart = [
        [fmean(look.local_losses) + 1e-5 - look.global_loss for look in result.looks]
        for result in ensembles
    ]
    shares = list(map(worse_share, apart))
    found.append(figure("larger_loss_than_locals_share/ensemble", shares, "share"))
    for name in ("ec", "ma", "e"):
        each = [fmean(result.differences()) for result in trained[name]]
        found.append(figure(f"diff_lg/{name}", each, "points"))
    gains = [_compression_gain(result) for result in trained["ec"]]
    found.append(figure("diff_lc/ec", gains, "points"))
    for name, results in trained.items():
        found.append(figure(f"parallel_s/{name}", last(name, "parallel_s"), "s"))
        for part in ("train_s", "compress_s", "relabel_s", "communication_s"):
            values = [getattr(result.account, part) for result in results]
            found.append(figure(f"{part}/{name}", values, "s"))
    return found


def _compression_gain(result: ErrorCurve) -> float:
    """Diff_LC (Eq. 8), the mean over all looks behind a compression."""
    found = [look.diff_lc for look in result.looks if look.diff_lc is not None]
    return fmean(found) if found else 0.0


# One training


def main() -> None:
    """One training, as a process of its own."""
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
        for batch in worker.stream.take(source, _PRICED_STEPS):
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
    inputs = data.inputs[data.train[:_PRICED_ROWS]]
    taken = []
    for _ in range(5):
        begin = worker.sgd.cpu()
        worker.sgd.probabilities(inputs)
        taken.append((worker.sgd.cpu() - begin) / len(inputs))
    torch.manual_seed(0)
    return float(np.median(taken))


if __name__ == "__main__":
    main()
