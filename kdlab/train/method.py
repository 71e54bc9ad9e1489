"""The base of all methods: what kind of training an experiment is."""

from abc import ABC, abstractmethod
from typing import Any

from kdlab.config.spec import Spec


class MethodSpec(Spec, ABC):
    @abstractmethod
    def build(self) -> Any: ...
