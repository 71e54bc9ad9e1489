"""Replay one epoch's batches with soft labels from memory: a control for benchmarks.

It measures training without the cost of batches: no teacher, no wire, no gathering of
pixels. Benchmarks compare served soft labels with it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from kdlab.config import register
from kdlab.soft_labels.scripted import Scripted
from kdlab.soft_labels.source import Batch, LocalSource, SourceContext, SourceSpec


@register("soft_labels/remembered")
@dataclass(frozen=True, kw_only=True)
class Remembered(SourceSpec):
    """The first epoch's views with scripted labels, from memory. For benchmarks."""

    def build(self, context: SourceContext) -> "RememberedSource":
        first = Scripted().build(context).epoch(0, ())
        return RememberedSource(
            [replace(b, views=b.views.clone(), labels=b.labels.clone()) for b in first]
        )


class RememberedSource(LocalSource):
    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        yield from (batch for batch in self.batches if batch.index not in done)
