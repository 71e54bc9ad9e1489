"""The base of all aggregations."""

from abc import ABC, abstractmethod
from typing import Any

from kdlab.config.spec import Spec


class AggregationSpec(Spec, ABC):
    @abstractmethod
    def build(self) -> Any: ...
