"""Names of runs and quantities in MLflow.

Its pages show a section for each prefix before the `/`, in alphabetical order: the most important
first, single numbers after the curves.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kdlab.tracking import VIEW

LEARNING, READER, SPEED, TEST = "learning", "soft_labels", "speed", "test"
VALIDATION, COST = "validation", "what_it_costs"
PLAIN = "none"  # the source of a student without a teacher

_OF_LEARNING = ("loss", "lr", "validation_top1", "validation_top5")
_OF_SPEED = ("samples_per_second", "samples_seen", "starved_s", "served_s")
_OF_READER = (
    *("volume", "volume_max", "in_flight", "teachers", "resends", "hedges", "stored_mb"),
    *("stability_mean", "credit", "latency_s", "capacity"),
    *("bytes_per_sample_reference", "bytes_per_sample_value"),
    *("queued_s", "views_s", "computed_s", "wire_s"),
    *("samples_lost", "samples_repeated", "samples_rolled_back"),
)
# Metric in MLflow, by the quantity's name in events and results.
METRICS: Mapping[str, str] = {
    **{key: f"{LEARNING}/{key}" for key in _OF_LEARNING},
    **{key: f"{SPEED}/{key}" for key in _OF_SPEED},
    **{key: f"{READER}/{key}" for key in _OF_READER},
    "train_seconds": f"{SPEED}/train_seconds",
    "wall_seconds": f"{SPEED}/wall_seconds",
    "student_top1": f"{TEST}/top1",
    "student_top5": f"{TEST}/top5",
    "student_top1_best": f"{TEST}/top1_best_on_validation",
    "global_top1": f"{TEST}/top1_global",
    "teacher_top1": f"{TEST}/teacher_top1",
    "before": f"{TEST}/plain_top1",
    "gained": f"{TEST}/gained_with_teacher",
    "low": f"{TEST}/gained_low",
    "high": f"{TEST}/gained_high",
    "validation_top1_best": f"{VALIDATION}/best_top1",
    "best_epoch": f"{VALIDATION}/best_epoch",
}

# Columns of MLflow's table of runs and widths: the decisive ones within 1,400 pixels.
COLUMNS = {
    "attributes.`Run Name`": 300,
    "runDateAndNestInfo": 145,
    "metrics.`test/top1`": 90,
    "metrics.`test/plain_top1`": 120,
    "metrics.`test/gained_with_teacher`": 180,
    "metrics.`test/teacher_top1`": 135,
    "duration": 85,
    "metrics.`learning/validation_top1`": 175,
    "metrics.`learning/loss`": 110,
}
_STATE = {
    "selectedColumns": [name for name in COLUMNS if name.startswith("metrics.")],
    "columnOrder": [*COLUMNS],
    "columnWidths": COLUMNS,
}
# Key and value of an experiment's tag: a view that MLflow lists. Before 3.17 it read no `state`.
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
VIEW_SAVED = json.dumps(
    {"name": VIEW, "createdAt": 0, "state": json.dumps(_STATE)} | _STATE
)
_LEADING = (  # parameters that are shown first
    *("member.", "student.", "teacher.model.", "soft_labels.type", "loss."),
    *("train.epochs", "train.batch", "train.optimizer", "train.lr", "train.schedule"),
)


def in_order(params: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Parameters in the order for MLflow's page of a run: `_LEADING` first, unset ones last."""

    def place(param: tuple[str, Any]) -> tuple[bool, int]:
        ranks = [n for n, key in enumerate(_LEADING) if param[0].startswith(key)]
        return param[1] is None, min(ranks, default=len(_LEADING))

    return sorted(params, key=place)


def metric(quantity: str) -> str:
    """Name of a quantity in MLflow; section `result` where it has none in `METRICS`."""
    return METRICS.get(quantity, f"result/{quantity}")


def training_name(spec: Mapping[str, Any], member: str, members: Sequence[str]) -> str:
    """Name of a training: "plain resnet10t", "served · seed 0 · resnet10t taught by resnet18".

    Source and seed appear where the `members` of the run differ in them, and come first, since
    MLflow cuts long names.
    """
    student, teacher = _model(spec.get("student")), teacher_name(spec.get("teacher"))
    pairs = [one.partition("/seed") for one in members]
    source, _, seed = member.partition("/seed")
    taught = {other for other, _, _ in pairs if other != PLAIN}
    several = len({other for _, _, other in pairs}) > 1
    if source == PLAIN:
        source, name = "", f"plain {student}".strip()
    else:
        name = f"{student} taught by {teacher}" if teacher else student
        source = source if len(taught) > 1 or not teacher else ""
    return " · ".join(filter(None, [source, f"seed {seed}" if several else "", name]))


def trial_name(number: int, values: Mapping[str, Any]) -> str:
    """Name of a trial, with its number and values: "trial 3 · lr 0.1, temperature 4"."""
    shown = [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values.values()]
    keys = [key.rpartition(".")[2] for key in values]
    tried = ", ".join(f"{k} {v}" for k, v in zip(keys, shown, strict=True))
    return f"trial {number} · {tried}" if tried else f"trial {number}"


def teacher_name(block: Any) -> str:
    """The teacher's network, or the number of several teachers; empty without a teacher."""
    if isinstance(block, list):
        return f"{len(block)} teachers"
    return _model(block.get("model")) if isinstance(block, Mapping) else ""


def _model(block: Any) -> str:
    if not isinstance(block, Mapping):
        return ""
    name = str(block.get("type", "")).rsplit("/", 1)[-1]
    return f"{name}-{block['depth']}" if block.get("depth") is not None else name
