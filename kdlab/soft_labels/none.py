"""N-training: the student learns from the true labels alone."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kdlab.config import register
from kdlab.soft_labels.source import (
    Batch,
    LocalSource,
    Samples,
    SourceContext,
    SourceSpec,
    local_batch,
    open_batches,
)


@register("soft_labels/none")
@dataclass(frozen=True, kw_only=True)
class NoTeacher(SourceSpec):
    """N-training: no teacher, true labels only. The loss weights do not apply."""

    def build(self, context: SourceContext) -> "NoTeacherSource":
        return NoTeacherSource(context.samples)


class NoTeacherSource(LocalSource):
    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        for index, ids in open_batches(self.samples, epoch, done):
            yield local_batch(self.samples, index, ids, epoch)
