"""Soft labels without a teacher model: for tests, and as the control in benchmarks."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch.nn.functional import one_hot

from kdlab.config import Range, register
from kdlab.soft_labels.source import LocalSource, SourceContext, SourceSpec


@register("soft_labels/scripted")
@dataclass(frozen=True, kw_only=True)
class Scripted(SourceSpec):
    """Soft labels computed from the true labels; no teacher runs. For tests and controls.

    confidence: probability given to the true class; the rest is shared evenly.
    """

    confidence: Annotated[float, Range(gt=0, lt=1)] = 0.9

    def build(self, context: SourceContext) -> LocalSource:
        classes = context.samples.classes
        rest = (1 - self.confidence) / max(1, classes - 1)
        gap = math.log(self.confidence / rest)
        return LocalSource(
            context.samples,
            lambda batch, view: one_hot(batch.labels, classes).to(torch.float32) * gap,
        )
