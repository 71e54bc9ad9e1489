"""The result of a run as one flat mapping: what `kdlab run --json` prints."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from kdlab.experiment.spec import ExperimentSpec
from kdlab.train.result import MemberReport

COUNTS = ("samples_seen", "samples_lost", "samples_repeated", "samples_rolled_back")


def outcome(
    spec: ExperimentSpec, results: Sequence[MemberReport], **facts: Any
) -> dict[str, Any]:
    """Top-level keys describe the served source (or the only one), mean over seeds."""
    described = [r for r in results if r.source == spec.described()]
    rows = [row(result) for result in results]
    main = summary([r for r in rows if r["source"] == spec.described()])
    return {
        "run_id": facts["run_id"],
        "experiment": facts["experiment"],
        "method": spec.method.component,
        "dataset": facts["dataset"],
        "source": spec.described(),
        "seeds": list(spec.seeds),
        **main,
        "teacher_top1": facts["teacher_top1"],
        "costs": next((r.costs for r in described if r.costs), {}),
        "epochs": described[0].epochs,
        "wall_seconds": facts["wall_seconds"],
        "tracking_uri": facts["tracking_uri"],
        "run_dir": facts["run_dir"],
        "status": "finished",
        "runs": rows,
    }


def row(result: MemberReport) -> dict[str, Any]:
    """One member: accuracies in percent on test, counts of samples."""
    return {
        "member": result.member,
        "source": result.source,
        "seed": result.seed,
        "student_top1": result.last.top1,
        "student_top5": result.last.top5,
        "student_top1_best": result.best.top1,
        "validation_top1": _number(result.validation_last),
        "validation_top1_best": _number(result.validation_best),
        "best_epoch": result.best_epoch,
        "samples_per_second": result.samples_per_second,
        "train_seconds": result.train_seconds,
        "wall_seconds": result.wall_seconds,
        "epochs": result.epochs,
        "samples_seen": result.seen,
        "samples_lost": result.lost,
        "samples_repeated": result.repeated,
        "samples_rolled_back": result.rolled_back,
        "resends": result.figures.get("resends", 0),
        "volume_max": result.figures.get("volume_max", 0),
        "student_path": result.model_path,
        "global_top1": result.global_top1,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, with the standard deviation of top-1; counts are added up."""
    means = (
        "student_top1",
        "student_top5",
        "student_top1_best",
        "validation_top1",
        "validation_top1_best",
        "samples_per_second",
        "global_top1",
    )
    top1 = [r["student_top1"] for r in rows]
    return {
        **{key: _mean([r[key] for r in rows]) for key in means},
        "student_top1_std": stdev(top1) if len(top1) > 1 else None,
        **{key: sum(r[key] for r in rows) for key in COUNTS},
    }


def _number(value: float) -> float | None:
    """None for "not a number" (no validation images), which JSON cannot hold."""
    return None if math.isnan(value) else value


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
