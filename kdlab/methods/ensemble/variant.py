"""Variant of parallel training that an ensemble experiment compares."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from kdlab.config import Fault, Range
from kdlab.config.spec import Spec
from kdlab.train.aggregation.kind import AggregationSpec

_POSITIVE = Range(ge=1)


@dataclass(frozen=True, kw_only=True)
class Variant(Spec):
    """One of the compared ways of parallel training.

    aggregation: how the global model is made.
    workers: null takes method.workers; 1 is training on one machine.
    epochs: over the local data; null takes train.epochs. It can give all variants the same time.
    iterations: of each worker, instead of whole epochs.
    """

    aggregation: AggregationSpec
    workers: Annotated[int, _POSITIVE] | None = None
    epochs: Annotated[int, _POSITIVE] | None = None
    iterations: Annotated[int, _POSITIVE] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        if self.epochs is not None and self.iterations is not None:
            yield Fault("epochs", "has no effect with iterations")

    def called(self, workers: int) -> str:
        """Return its name in the paper, with `workers` unless it sets their number."""
        return "s_dnn" if (self.workers or workers) == 1 else self.aggregation.called
