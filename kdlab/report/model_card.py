"""Model card of one trained student, as Markdown."""

from typing import Any

import yaml

from kdlab.report.costs import HEAD, cost_rows
from kdlab.report.page import markdown_table
from kdlab.report.table import NAMES
from kdlab.train.result import MemberResult


def model_card(
    result: MemberResult,
    *,
    experiment: str,
    run_id: str,
    dataset: str,
    spec: dict[str, Any],
    network: str,
    spec_hash: str,
    teacher_top1: float | None,
) -> str:
    """Return the card of one member; `network` is the final student's network."""
    teacher = "none" if teacher_top1 is None else f"{teacher_top1:.2f} % top-1 on test"
    costs = ""
    if result.costs:  # empty where they could not be measured
        costs = f"{markdown_table(HEAD, cost_rows(result.costs))}\n\n"
    return f"""# {network} distilled on {dataset}

Student of run `{run_id}` ({experiment}), member `{result.member}`, spec `{spec_hash}`.

| | |
| --- | --- |
| soft labels | {NAMES.get(result.source, result.source)} |
| teacher | {teacher} |
| test top-1, last epoch | {result.last.top1:.2f} % |
| test top-1, best epoch on validation ({result.best_epoch}) | {result.best.top1:.2f} % |
| parameters | {result.parameters:,} |
| seed | {result.seed} |
| samples trained on | {result.seen:,} ({result.lost} lost, {result.repeated} repeated) |

{costs}`student.safetensors` holds the bare network, `student.json` its type and the mean and
standard deviation its input is normalised with (on the 0..1 scale).

## Spec

```yaml
{yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)}```
"""
