"""The base of all aggregations."""

from abc import ABC, abstractmethod

from kdlab.config.spec import Spec


class AggregationSpec(Spec, ABC):
    @property
    def smallest_batch(self) -> int | None:
        """Samples that a batch must have at least; None where it may have any number."""
        return None

    @abstractmethod
    def build(self) -> object: ...
