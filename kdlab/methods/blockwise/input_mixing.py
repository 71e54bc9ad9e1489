"""How student blocks are told to get the student's own inputs now and then."""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config.spec import SHARE, Range, Spec


@dataclass(frozen=True, kw_only=True)
class InputMixing(Spec):
    """Some rows of a student block's input are what the student's blocks before it put out.

    most: share of the rows at the end of the training; it rises in a straight line.
    after: share of all steps before the first such row.
    """

    most: Annotated[float, SHARE] = 0.5
    after: Annotated[float, Range(ge=0, lt=1)] = 0.25
