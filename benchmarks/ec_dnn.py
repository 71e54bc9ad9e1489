"""`kdlab bench ec_dnn`: EC-DNN beside MA-DNN, E-DNN and S-DNN, at equal time of computing.

Every method gets so many iterations that training, relabelling and compressing take the same
time on machines side by side (section 4.3); communication comes on top, and counts in speeds.
What a step and a relabelled row cost is measured first, with nothing beside it, and the time of
a training is what it did times that; so trainings go on beside each other, as many as there
are cores, each with its workers one after the other. tau, and of EC-DNN alpha, p and beta, are
chosen on validation images with the first seed; test images decide nothing.
"""

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from tempfile import mkdtemp
from typing import Literal

from benchmarks.harness import Scratch, quiet, report
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
from kdlab.supervision.children import announce

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


Cases = Sequence[tuple[BenchedMethod, int]]  # each with its seed


@dataclass(frozen=True, slots=True)
class TrainedBy:
    """What all trainings have in common."""

    experiment: str
    overrides: list[str]
    folder: Path  # of all

    def run(
        self, method: BenchedMethod, seed: int, prices: Prices | None = None
    ) -> EnsembleRun:
        own = {"method.compare": {"own": method.variant()}, "method.processes": False}
        spec = load(self.experiment, *self.overrides, own).spec
        member = next(m for m in spec.members() if m.source_name == "own")
        assert isinstance(spec.method, Ensemble)
        named = replace(member, source_name="own", seed=seed)
        return EnsembleRun(spec.method, TrainingSetup(spec), named, prices)


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
    with Scratch() as scratch:
        by = TrainedBy(experiment, list(overrides), scratch.folder)
        (costs,) = scratch.results(priced, [{"by": by}], patience_s=_PATIENCE_S)
        prices = costs.prices
        say(
            f"a step takes {1e3 * prices.step_s:.1f} ms, a row forward "
            f"{1e6 * prices.row_s:.0f} us"
        )

        def trained_all(cases: Cases) -> list[ErrorCurve]:
            own = {"by": by, "prices": prices}
            return scratch.results(
                trained,
                [own | {"method": method, "seed": seed} for method, seed in cases],
                at_once=os.cpu_count() or 1,
                patience_s=_PATIENCE_S * max(1, len(cases)),
                say=say,
            )

        every = _cases(costs, budget_s)
        best, first = chosen(every, trained_all([(case, 0) for _, case in every]), say)
        others = trained_all(
            [(c, seed) for seed in range(1, repeats) for c in best.values()]
        )
    curves = {
        name: [first[name], *others[number :: len(best)]]
        for number, name in enumerate(best)
    }
    whole = [k for k in range(repeats) if all(own[k].looks for own in curves.values())]
    if len(whole) < repeats:
        say(f"{len(whole)} of {repeats} seeds count: with the others a method diverged")
    curves = {name: [own[k] for k in whole] for name, own in curves.items()}
    return report("ec_dnn", _figures(curves))


def _cases(costs: MeasuredSeconds, budget_s: float) -> list[tuple[str, BenchedMethod]]:
    """Settings that each method is tried with, the best of which are chosen on validation."""
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


def _figures(trained: dict[str, list[ErrorCurve]]) -> list[Figure]:
    keys = {"g": "global_", "l": "chosen"}  # fields of the errors, as the paper calls them

    def last(name: str, key: str) -> list[float]:
        return [getattr(result.last, key) for result in trained[name]]

    def speeds(name: str, of: str, axis: str) -> list[float]:
        pairs = zip(trained[name], trained["ma"], strict=True)
        key = keys[of]
        return [speed(one.curve(key, axis), ma.curve("global_", axis)) for one, ma in pairs]

    found = [figure("error_pct/s", last("s", "chosen"), "%")]
    for name in ("ec", "ma", "e"):
        for of, key in keys.items():
            found.append(figure(f"error_pct/{name}_{of}", last(name, key), "%"))
        apart = [fmean(result.differences()) for result in trained[name]]
        found.append(figure(f"diff_lg/{name}", apart, "points"))
    for other, of in (("ma", "g"), ("e", "g"), ("ma", "l")):
        pairs = zip(last("ec", keys[of]), last(other, keys[of]), strict=True)
        label = f"points_better/ec_{of}_than_{other}_{of}"
        found.append(figure(label, [b - a for a, b in pairs], "points"))
    for name, of in (("ec", "g"), ("ec", "l"), ("e", "g")):
        times, counted = (speeds(name, of, axis) for axis in ("parallel_s", "iterations"))
        found.append(figure(f"speed/{name}_{of}", times, "times"))
        found.append(figure(f"speed_in_iterations/{name}_{of}", counted, "times"))
    ensembles = [*trained["ec"], *trained["e"]]
    for name, those in (("ensemble", ensembles), ("model_average", trained["ma"])):
        # Of rounds at whose end the global model is worse than its models on average (Eq. 7).
        shares = [worse_share(result.differences()) for result in those]
        found.append(figure(f"worse_than_locals_share/{name}", shares, "share"))
    # The same by the loss, where Eq. 3 allows none for an ensemble.
    losses = [
        [fmean(look.local_losses) + 1e-5 - look.global_loss for look in result.looks]
        for result in ensembles
    ]
    shares = list(map(worse_share, losses))
    found.append(figure("larger_loss_than_locals_share/ensemble", shares, "share"))
    # Diff_LC (Eq. 8), the mean over all looks behind a compression.
    each = [
        [look.diff_lc for look in result.looks if look.diff_lc is not None]
        for result in trained["ec"]
    ]
    found.append(figure("diff_lc/ec", [fmean(own or [0.0]) for own in each], "points"))
    for name, results in trained.items():
        found.append(figure(f"parallel_s/{name}", last(name, "parallel_s"), "s"))
        for part in ("train_s", "compress_s", "relabel_s", "communication_s"):
            values = [getattr(result.account, part) for result in results]
            found.append(figure(f"{part}/{name}", values, "s"))
    return found


# One training


def trained(by: TrainedBy, method: BenchedMethod, seed: int, prices: Prices) -> ErrorCurve:
    """What a training came to; one that diverged has no looks."""
    run = by.run(method, seed, prices)
    folder = Path(mkdtemp(dir=by.folder))
    processes = WorkersHere(
        lambda number: run.worker(number, folder, unheard),
        lambda worker: run.source(worker, "bench", None),
    )
    driver = RoundDriver(run.training(folder, unheard), processes)
    try:
        driver.run()
    except Diverged as error:
        announce(say=f"{method.name}: {error}")
        return ErrorCurve([], driver.account)
    return ErrorCurve(driver.looks, driver.account)


def priced(by: TrainedBy) -> MeasuredSeconds:
    """Medians of the seconds its device is busy, on the images themselves."""
    run = by.run(BenchedMethod(name="costs"), seed=0)
    worker = run.worker(0, Path(mkdtemp(dir=by.folder)), unheard)
    with closing(run.source(worker, "bench", None)) as source:
        steps = []
        worker.model.train()
        for batch in worker.stream.take(source, _PRICED_STEPS):
            begin = worker.sgd.cpu()
            worker.sgd.one(batch)
            steps.append(worker.sgd.cpu() - begin)
    return MeasuredSeconds(
        prices=Prices(step_s=median(steps[5:]), row_s=_forward_s(worker)),
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
