"""Inference costs of student and teacher, side by side."""

from collections.abc import Mapping

from kdlab.report.table import text_table

HEAD = ("", "parameters", "MB", "GFLOP per image", "ms per image on one core")
_KEYS = ("parameters", "megabytes", "gflops", "latency_ms")

# By "student" and, where there is one, "teacher": fields of kdlab.models.cost.Cost.
CostOfEach = Mapping[str, Mapping[str, float]]


def cost_rows(costs: CostOfEach) -> list[list[str]]:
    """Return a row per model below `HEAD`, and one of how many times smaller the student is."""
    rows = [
        [name, f"{cost['parameters']:,}", *(f"{cost[key]:.3g}" for key in _KEYS[1:])]
        for name, cost in costs.items()
    ]
    if smaller := times_smaller(costs):
        if "latency_ms" in smaller:  # ratio of two measurements: two digits
            smaller["latency_ms"] = float(f"{smaller['latency_ms']:.2g}")
        cells = [f"{smaller[key]:.3g}" if key in smaller else "-" for key in _KEYS]
        rows.append(["times smaller", *cells])
    return rows


def times_smaller(costs: CostOfEach) -> dict[str, float]:
    """Return ratios of teacher to student for costs above zero; empty without both."""
    if not {"teacher", "student"} <= set(costs):
        return {}
    big, small = costs["teacher"], costs["student"]
    return {key: big[key] / small[key] for key in _KEYS if small[key]}


def cost_table(costs: CostOfEach) -> str:
    return text_table(HEAD, cost_rows(costs))
