"""Soft labels without a teacher model: for tests, and as the control in benchmarks."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch.nn.functional import one_hot

from kdlab.config import Range, register
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.soft_labels.source import Batch, LocalSource, SourceContext, SourceSpec


@register("soft_labels/scripted")
@dataclass(frozen=True, kw_only=True)
class Scripted(SourceSpec):
    """Answers made from the true labels; no teacher runs. For tests and controls.

    confidence: probability given to the true class; the rest is shared evenly.
    """

    confidence: Annotated[float, Range(gt=0, lt=1)] = 0.9

    def build(self, context: SourceContext) -> "ScriptedSource":
        return ScriptedSource(
            NoTeacherSource(context.samples), context.samples.classes, self.confidence
        )


class ScriptedSource(LocalSource):
    def __init__(self, plain: NoTeacherSource, classes: int, confidence: float) -> None:
        self.plain, self.classes = plain, classes
        rest = (1 - confidence) / max(1, classes - 1)
        self.gap = math.log(confidence / rest)

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        for batch in self.plain.epoch(epoch, done):
            soft = one_hot(batch.labels, self.classes).to(torch.float32) * self.gap
            yield replace(batch, soft=soft)
