"""The base of all methods: what kind of training an experiment is."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from kdlab.config.spec import Spec


class MethodSpec(Spec, ABC):
    needs_teacher: ClassVar[bool] = False  # whatever the soft labels need

    @abstractmethod
    def build(self) -> Any: ...
