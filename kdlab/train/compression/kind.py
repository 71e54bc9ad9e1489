"""The base of all compressions."""

from abc import ABC, abstractmethod
from typing import Annotated

from kdlab.config.spec import Range, Spec
from kdlab.papers.ec_dnn.round_schedule import StepWeight


class CompressionSpec(Spec, ABC):
    """What every compression has: a number of iterations, and a weight that may rise."""

    p_iterations: Annotated[int, Range(ge=1)] | None
    p_fraction: float

    @property
    def in_line(self) -> bool:
        """Whether it takes its batches from those of the training."""
        return False

    @abstractmethod
    def weights(self) -> StepWeight:
        """Beta of Eq. 6 by compression."""

    @abstractmethod
    def build(self) -> object: ...
