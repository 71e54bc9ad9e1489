"""`kdlab bench ec_dnn`: EC-DNN beside MA-DNN, E-DNN and S-DNN, at equal overall time.

Every method gets so many iterations that its overall time on machines side by side (section
4.3: the slowest worker of each round, communication at 1 Gbit/s, relabelling) is the same.
What a step and a relabelled row cost is measured first. tau, and of EC-DNN alpha, p and beta,
are chosen on validation images with the first seed; test images decide nothing. Two trainings
go on at a time, each with its workers one after the other, and processor time counts: what
machines of one core each would need.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from kdlab.errors import ClusterError
from kdlab.messages import typed
from kdlab.papers.ec_dnn.metrics import Point, speed, worse_share
from kdlab.report.figures import Figure, Report, figure, report
from kdlab.supervision.children import Child

EXPERIMENT = "ec_dnn/cifar10_cpu"
BUDGET_S = 20.0
MA_TAUS = (16, 64, 200)

# What EC-DNN is tried with: tau, alpha, p, and beta of Eq. 6 (the paper: 0.4, then 0.6).
EC_TRIED = (
    (50, 0.0, 0.1, (0.4, 0.6)),
    (100, 0.0, 0.1, (0.4, 0.6)),
    (200, 0.0, 0.1, (0.4, 0.6)),
    (100, 0.6, 0.1, (0.4, 0.6)),
    (100, 0.0, 0.05, (0.4, 0.6)),
    (200, 0.0, 0.3, (1.0, 1.0)),
    (100, 0.0, 0.5, (1.0, 1.0)),
)
_PATIENCE_S = 1200.0
_NONE = "train/aggregation/none"


@dataclass(frozen=True, slots=True)
class MeasuredSeconds:
    """Processor seconds, measured."""

    step_s: float  # of one SGD step
    row_s: float  # of one model on one row, forward
    batch: int
    workers: int

    def iterations(self, budget_s: float, *, diversity: float = 0.0, p: float = 0.0) -> int:
        """As many as fit into the budget."""
        rows = self.batch * self.workers * self.row_s
        each = self.step_s * (1 + p) + p * rows + (rows if diversity else 0.0)
        return max(1, int(budget_s / each))


@dataclass(frozen=True, slots=True)
class BenchedMethod:
    """A method with its settings."""

    name: str
    variant: dict[str, Any]


def measure(
    repeats: int = 3,
    say: Callable[[str], None] = lambda line: None,
    overrides: Sequence[str] = (),
    budget_s: float = BUDGET_S,
) -> Report:
    """All figures.

    Args:
        repeats: seeds.
        say: told how it goes.
        overrides: of configs/ec_dnn/cifar10_cpu.yaml.
        budget_s: overall time of each training, on machines side by side.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        jobs = _Jobs(Path(folder), list(overrides))
        (found,) = jobs.all([{"what": "costs"}])
        costs = MeasuredSeconds(**found)
        say(
            f"a step takes {1e3 * costs.step_s:.1f} ms, a row forward "
            f"{1e6 * costs.row_s:.0f} us"
        )
        chosen, first = _chosen(jobs, costs, budget_s, say)
        seeds = range(1, repeats)
        others = jobs.all([_job(case, seed) for seed in seeds for case in chosen.values()])
        results = {name: [first[name]] for name in chosen}
        for k in range(len(seeds)):
            for n, name in enumerate(chosen):
                results[name].append(others[k * len(chosen) + n])
    say(f"done in {time.monotonic() - begin:.0f} s")
    return report("ec_dnn", _figures(results, chosen))


def _chosen(
    jobs: "_Jobs", costs: MeasuredSeconds, budget_s: float, say: Callable[[str], None]
) -> tuple[dict[str, BenchedMethod], dict[str, dict[str, Any]]]:
    """The settings of each method that are best on validation, with the first seed."""
    plain = costs.iterations(budget_s)
    cases = {
        "s": [BenchedMethod("s", _contender({"type": _NONE}, plain, workers=1))],
        "e": [BenchedMethod("e", _contender({"type": _NONE}, plain))],
        "ma": [
            BenchedMethod(
                f"ma tau {tau}",
                _contender(
                    {"type": "train/aggregation/model_average", "tau": min(tau, plain)},
                    plain,
                ),
            )
            for tau in MA_TAUS
        ],
        "ec": [_ec(costs, budget_s, *tried) for tried in EC_TRIED],
    }
    every = [(name, case) for name, own in cases.items() for case in own]
    found = jobs.all([_job(case, 0) for _, case in every])
    best: dict[str, tuple[float, BenchedMethod, dict[str, Any]]] = {}
    for (name, case), result in zip(every, found, strict=True):
        last = result["looks"][-1]
        say(
            f"{case.name}: validation error {last['validation_global']:.2f} %, test "
            f"{last['global_']:.2f} % (_G) {last['chosen']:.2f} % (_L), "
            f"{last['iterations']} iterations, {last['parallel_s']:.1f} s"
        )
        if name not in best or last["validation_global"] < best[name][0]:
            best[name] = last["validation_global"], case, result
    return {n: case for n, (_, case, _) in best.items()}, {
        n: result for n, (_, _, result) in best.items()
    }


def _contender(aggregation: dict[str, Any], iterations: int, **rest: Any) -> dict[str, Any]:
    return {"aggregation": aggregation, "iterations": iterations} | rest


def _ec(
    costs: MeasuredSeconds,
    budget_s: float,
    tau: int,
    alpha: float,
    p: float,
    beta: tuple[float, float],
) -> BenchedMethod:
    iterations = costs.iterations(budget_s, diversity=alpha, p=p)
    tau = min(tau, max(1, iterations // 2))  # two rounds at least
    compression = {
        "type": "train/compression/distillation",
        "p_fraction": p,
        "weight": beta[0],
        "risen_weight": beta[1],
    }
    aggregation = {
        "type": "train/aggregation/ensemble",
        "tau": tau,
        "diversity_weight": alpha,
        "compression": compression,
    }
    name = f"ec tau {tau} alpha {alpha:g} p {p:g} beta {beta[0]:g}, {beta[1]:g}"
    return BenchedMethod(name, _contender(aggregation, iterations))


def _job(case: BenchedMethod, seed: int) -> dict[str, Any]:
    return {"what": "train", "variant": case.variant, "seed": seed}


class _Jobs:
    """Trainings as processes, as many at a time as there are cores."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        self.folder, self.overrides, self.number = folder, overrides, 0

    def all(self, configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What each came to, in their order."""
        found: dict[int, dict[str, Any]] = {}
        waiting, running = list(enumerate(configs)), dict[int, Child]()
        deadline = time.monotonic() + _PATIENCE_S * max(1, len(configs))
        try:
            while len(found) < len(configs):
                while waiting and len(running) < max(1, min(2, os.cpu_count() or 1)):
                    at, config = waiting.pop(0)
                    running[at] = self._started(config)
                for at, child in list(running.items()):
                    result = _result(child)
                    if result is not None:
                        found[at] = result
                        running.pop(at).stop()
                if time.monotonic() > deadline:
                    raise ClusterError("the trainings of this benchmark take far too long")
                time.sleep(0.1)  # between looks at pipes
        finally:
            for child in running.values():
                child.stop()
        return [found[at] for at in range(len(configs))]

    def _started(self, config: dict[str, Any]) -> Child:
        self.number += 1
        own = self.folder / f"{self.number}"
        own.mkdir()
        shared = {
            "experiment": EXPERIMENT,
            "overrides": self.overrides,
            "folder": str(own),
        }
        return Child(
            "kdlab.bench.ec_dnn_training",
            shared | config,
            own / "training.log",
            environment={"OMP_NUM_THREADS": "1"},
        )


def _result(child: Child) -> dict[str, Any] | None:
    alive = child.alive()  # asked first: its last words are read below
    for message in child.messages():
        if "done" in message:
            return typed(dict[str, Any], message["done"])
    if not alive:
        raise ClusterError(child.exit_report("ended before it was done"))
    return None


def _figures(
    results: dict[str, list[dict[str, Any]]], chosen: dict[str, BenchedMethod]
) -> list[Figure]:
    def last(name: str, key: str) -> list[float]:
        return [result["looks"][-1][key] for result in results[name]]

    found = [figure("error_pct/s", last("s", "chosen"), "%")]
    for name in ("ec", "ma", "e"):
        found.append(figure(f"error_pct/{name}_g", last(name, "global_"), "%"))
        found.append(figure(f"error_pct/{name}_l", last(name, "chosen"), "%"))
    for one, other, key in (
        ("ec", "ma", "global_"),
        ("ec", "e", "global_"),
        ("ec", "ma", "chosen"),
    ):
        suffix = "g" if key == "global_" else "l"
        pairs = zip(last(one, key), last(other, key), strict=True)
        label = f"points_better/{one}_{suffix}_than_{other}_{suffix}"
        found.append(figure(label, [b - a for a, b in pairs], "points", ">= 0"))
    baseline = [_curve(result, "global_") for result in results["ma"]]
    for name, key, goal in (
        ("ec_g", "global_", ">= 1.9"),
        ("ec_l", "chosen", None),
        ("e_g", "global_", None),
    ):
        own = [_curve(result, key) for result in results[name.split("_")[0]]]
        values = [speed(mine, ma) for mine, ma in zip(own, baseline, strict=True)]
        found.append(figure(f"speed/{name}", values, "times", goal))
    found.append(_worse("ensemble", [*results["ec"], *results["e"]], "<= 0"))
    found.append(_worse("model_average", results["ma"], None))
    for name, case in chosen.items():
        tau = case.variant["aggregation"].get("tau")
        if tau is not None:
            found.append(figure(f"tau/{name}", [tau], "iterations"))
        found.append(figure(f"parallel_s/{name}", last(name, "parallel_s"), "s"))
        found.append(figure(f"iterations/{name}", last(name, "iterations"), "iterations"))
        accounts = [result["account"] for result in results[name]]
        for part in ("relabel_s", "communication_s"):
            found.append(figure(f"{part}/{name}", [a[part] for a in accounts], "s"))
    aggregation = chosen["ec"].variant["aggregation"]
    compression = aggregation["compression"]
    found.append(figure("alpha/ec", [aggregation["diversity_weight"]], ""))
    found.append(figure("p/ec", [compression["p_fraction"]], "share"))
    return [*found, figure("beta/ec", [compression["risen_weight"]], "")]


def _curve(result: dict[str, Any], key: str) -> list[Point]:
    return [Point(look["parallel_s"], look[key]) for look in result["looks"]]


def _worse(name: str, results: Sequence[dict[str, Any]], goal: str | None) -> Figure:
    """Share of looks whose global model has a larger loss than its models on average."""
    shares = [
        worse_share(
            [
                fmean(look["local_losses"]) + 1e-5 - look["global_loss"]
                for look in result["looks"]
            ]
        )
        for result in results
    ]
    return figure(f"worse_than_locals_share/{name}", shares, "share", goal)
