"""`kdlab bench ec_dnn`: EC-DNN beside MA-DNN, E-DNN and S-DNN, at equal time of computing.

Every method gets so many iterations that training, relabelling and compressing take the same
time on machines side by side (section 4.3); communication comes on top, and counts in speeds.
What a step and a relabelled row cost is measured first, with nothing beside it, and the time of
a training is what it did times that; so trainings go on beside each other, as many as there
are cores, each with its workers one after the other. tau, and of EC-DNN alpha, p and beta, are
chosen on validation images with the first seed, of as many candidates for each; E-DNN and S-DNN
have nothing to choose. Test images decide nothing. What is chosen is also trained with a half and
a quarter of the time, each with its own schedule: that is what a user can buy.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Literal

from benchmarks.curves import compared, errors_and_costs, points_of
from benchmarks.harness import Scratch, quiet, report
from kdlab.errors import Diverged
from kdlab.events.event import discard_event
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.ensemble.ensemble_run import EnsembleRun
from kdlab.methods.ensemble.local_job import UnitCosts
from kdlab.methods.ensemble.method import Ensemble
from kdlab.methods.ensemble.model_workers import InProcessWorkers
from kdlab.methods.ensemble.round_driver import RoundDriver
from kdlab.methods.ensemble.worker import LocalWorker
from kdlab.report.figures import EmitLine, Figure, Report, figure
from kdlab.report.methods import ErrorCurve
from kdlab.run.experiment import load
from kdlab.supervision.children import announce

EXPERIMENT = "ec_dnn/cifar10_cpu"
BUDGET_S = 20.0
BUDGETS = (0.25, 0.5, 1.0)  # shares of it
MA_TAUS = (8, 16, 32, 64, 128, 256)

# Settings of EC-DNN to choose from: communications, alpha, p, and beta of Eq. 6 (the paper: 0.4,
# then 0.6). Most are without the term of Eq. 5, which costs a relabelling of every batch. tau is
# large: a compression of a step or two shows nothing.
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


@dataclass(frozen=True, slots=True)
class MeasuredSeconds:
    """Seconds of a step and of a row, measured with nothing beside them."""

    prices: UnitCosts
    batch: int
    workers: int

    def iterations(self, budget_s: float, *, diversity: float = 0.0, p: float = 0.0) -> int:
        """Return how many iterations fit into the budget."""
        rows = self.batch * self.workers * self.prices.row_s
        each = self.prices.step_s * (1 + p) + p * rows + (rows if diversity else 0.0)
        # A hair more, so that the time of 1,000 steps is not 999 of them
        return max(1, int(budget_s / each * (1 + 1e-9)))


@dataclass(frozen=True, slots=True)
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
        """Return this method as a variant of `method.compare`."""
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
        variant: dict[str, object] = {
            "aggregation": aggregation,
            "iterations": self.iterations,
        }
        return variant if self.workers is None else variant | {"workers": self.workers}


Cases = Sequence[tuple[BenchedMethod, int]]  # each with its seed


@dataclass(frozen=True, slots=True)
class TrainedBy:
    """Settings that all trainings share."""

    experiment: str
    overrides: list[str]
    folder: Path  # of all

    def run(
        self, method: BenchedMethod, seed: int, prices: UnitCosts | None = None
    ) -> EnsembleRun:
        settings = {"method.compare": {"own": method.variant()}, "method.processes": False}
        spec = load(self.experiment, *self.overrides, settings).spec
        member = next(m for m in spec.members() if m.source_name == "own")
        assert isinstance(spec.method, Ensemble)
        named = replace(member, source_name="own", seed=seed)
        return EnsembleRun(spec.method, TrainingSetup(spec), named, prices)


def measure(
    repeats: int = 5,
    say: EmitLine = quiet,
    overrides: Sequence[str] = (),
    experiment: str = EXPERIMENT,
    budget_s: float = BUDGET_S,
    budget_steps: int | None = None,
) -> Report:
    """Measure all figures, with `repeats` seeds.

    overrides: of this experiment, a config of `methods/ensemble`.
    budget_s: overall time of each training, on machines side by side.
    budget_steps: as long as this many steps of one model take here, in place of seconds. Then only
        what relabelling costs beside a step depends on the machine.
    """
    with Scratch() as scratch:
        by = TrainedBy(experiment, list(overrides), scratch.folder)
        (costs,) = scratch.results(priced, [{"by": by}], patience_s=_PATIENCE_S)
        step_ms, row_us = 1e3 * costs.prices.step_s, 1e6 * costs.prices.row_s
        say(f"a step takes {step_ms:.1f} ms, a row forward {row_us:.0f} us")
        train = partial(_train_all, scratch, by, costs.prices, say)
        if budget_steps is not None:
            budget_s = budget_steps * costs.prices.step_s
        every = candidates(costs, budget_s)
        first = train([(case, 0) for _, case in every])
        best = chosen(every, first, say)
        asked = [
            (name, share, seed)
            for share in BUDGETS
            for seed in range(repeats)
            for name in best
            # S-DNN is a row of a table, and is compared with nobody.
            if (share, seed) != (1, 0) and (share == 1 or name != "s")
        ]
        others = train(
            [
                (candidates(costs, share * budget_s)[best[name]][1], seed)
                for name, share, seed in asked
            ]
        )
    curves = dict(zip(asked, others, strict=True))
    curves |= {(name, 1.0, 0): first[number] for name, number in best.items()}
    settings = _settings({name: every[number][1] for name, number in best.items()})
    return _report(curves, repeats, settings, say)


def _train_all(
    scratch: Scratch, by: TrainedBy, prices: UnitCosts, say: EmitLine, cases: Cases
) -> list[ErrorCurve]:
    """Train all cases, as many side by side as there are cores."""
    arguments = {"by": by, "prices": prices}
    return scratch.results(
        trained,
        [arguments | {"method": method, "seed": seed} for method, seed in cases],
        at_once=os.cpu_count() or 1,
        patience_s=_PATIENCE_S * max(1, len(cases)),
        say=say,
    )


def _report(
    curves: Mapping[tuple[str, float, int], ErrorCurve],
    repeats: int,
    settings: list[Figure],
    say: EmitLine,
) -> Report:
    """All figures, from trainings by name, share of the budget and seed."""
    lost = {seed for (_, _, seed), training in curves.items() if not training.looks}
    seeds = [seed for seed in range(repeats) if seed not in lost]
    if lost:
        say(f"{len(seeds)} of {repeats} seeds count: with the others a method diverged")
    if not seeds:
        raise Diverged("With no seed all methods came to their end. Lower train.lr.")
    trainings = {
        name: [curves[name, 1.0, seed] for seed in seeds] for name in ("s", "e", "ma", "ec")
    }
    ends = {
        name: [[curves[name, share, seed].end for share in BUDGETS] for seed in seeds]
        for name in ("e", "ma", "ec")
    }
    read = compared(trainings, ends)
    result = report("ec_dnn", errors_and_costs(trainings) + settings + read.figures)
    result["undefined"], result["curves"] = read.undefined, points_of(trainings)
    return result


def candidates(costs: MeasuredSeconds, budget_s: float) -> list[tuple[str, BenchedMethod]]:
    """Settings that each method is tried with, the best of which are chosen on validation.

    The same ones in the same order for every budget.
    """
    plain = costs.iterations(budget_s)
    ma = [(f"ma tau {tau}", min(tau, plain)) for tau in MA_TAUS]
    return [
        ("s", BenchedMethod(name="s", iterations=plain, workers=1)),
        ("e", BenchedMethod(name="e", iterations=plain)),
        *(("ma", BenchedMethod(name, "model_average", plain, tau=tau)) for name, tau in ma),
        *(("ec", _ec(costs, budget_s, *tried)) for tried in EC_TRIED),
    ]


def chosen(
    cases: Sequence[tuple[str, BenchedMethod]],
    curves: Sequence[ErrorCurve],
    say: EmitLine = quiet,
) -> dict[str, int]:
    """The number of the setting with the smallest validation error, of each name.

    Args:
        cases: names and settings.
        curves: the training of each; one that diverged has no looks.
        say: gets a line for each.

    Raises:
        Diverged: all trainings of one name diverged.
    """
    best: dict[str, int] = {}
    for number, ((name, case), result) in enumerate(zip(cases, curves, strict=True)):
        if not result.looks:
            continue
        last = result.last
        say(
            f"{case.name}: validation error {last.validation_global:.2f} %, test "
            f"{last.global_:.2f} % (_G) {last.chosen:.2f} % (_L), "
            f"{last.iterations} iterations, {last.parallel_s:.1f} s"
        )
        before = curves[best[name]].last.validation_global if name in best else 100.0
        if name not in best or last.validation_global < before:
            best[name] = number
    if lost := sorted({name for name, _ in cases} - set(best)):
        raise Diverged(
            f"No training of {', '.join(lost)} came to its end: their losses are no numbers. "
            "Lower train.lr of the experiment."
        )
    return best


def _ec(
    costs: MeasuredSeconds,
    budget_s: float,
    communications: int,
    alpha: float,
    p: float,
    beta: tuple[float, float],
) -> BenchedMethod:
    iterations = costs.iterations(budget_s, diversity=alpha, p=p)
    # Rounded up: rounded down, the iterations left over would need one round more.
    tau = ceil(iterations / communications)
    return BenchedMethod(
        name=f"ec tau {tau} alpha {alpha:g} p {p:g} beta {beta[0]:g}, {beta[1]:g}",
        aggregation="ensemble",
        iterations=iterations,
        tau=tau,
        alpha=alpha,
        p=p,
        beta=beta,
    )


def _settings(best: Mapping[str, BenchedMethod]) -> list[Figure]:
    """Return figures of the settings that were chosen on validation."""
    ma, ec = best["ma"], best["ec"]
    assert ma.tau is not None
    assert ec.tau is not None
    return [
        figure("tau/ma", ma.tau, "iterations"),
        figure("tau/ec", ec.tau, "iterations"),
        figure("communications/ec", ceil(ec.iterations / ec.tau), ""),
        figure("alpha/ec", ec.alpha, ""),
        figure("p/ec", ec.p, "share"),
        figure("beta/ec", ec.beta[0], ""),
        figure("beta_later/ec", ec.beta[1], ""),
    ]


# One training


def trained(
    by: TrainedBy, method: BenchedMethod, seed: int, prices: UnitCosts
) -> ErrorCurve:
    """Run a training and return its curve; one that diverged has no looks."""
    run = by.run(method, seed, prices)
    folder = Path(mkdtemp(dir=by.folder))
    processes = InProcessWorkers(
        lambda number: run.worker(number, folder, discard_event),
        lambda worker: run.source(worker, "bench", None),
        stacked=run.method.stacked,
    )
    driver = RoundDriver(run.training(folder, discard_event), processes)
    try:
        driver.run()
    except Diverged as error:
        announce(say=f"{method.name}: {error}")
        return ErrorCurve([], driver.account)
    return ErrorCurve(driver.looks, driver.account)


def priced(by: TrainedBy) -> MeasuredSeconds:
    """Measure how long the device is busy with a step and with a row: medians, on the images."""
    run = by.run(BenchedMethod(name="costs"), seed=0)
    worker = run.worker(0, Path(mkdtemp(dir=by.folder)), discard_event)
    with closing(run.source(worker, "bench", None)) as source:
        steps = []
        worker.model.train()
        for batch in worker.stream.take(source, _PRICED_STEPS):
            begin = worker.sgd.cpu()
            worker.sgd.step(batch)
            steps.append(worker.sgd.cpu() - begin)
    return MeasuredSeconds(
        prices=UnitCosts(step_s=median(steps[5:]), row_s=_forward_s(worker)),
        batch=run.recipe.batch,
        workers=run.method.workers,
    )


def _forward_s(worker: LocalWorker) -> float:
    data = worker.job.samples.data
    inputs = data.inputs[data.train[:_PRICED_ROWS]]
    taken = []
    for _ in range(5):
        begin = worker.sgd.cpu()
        worker.sgd.probabilities(inputs)
        taken.append((worker.sgd.cpu() - begin) / len(inputs))
    return median(taken)
