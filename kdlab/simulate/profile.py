"""A fact about a machine: how fast it does one thing."""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import register
from kdlab.config.spec import POSITIVE, Spec


@register("simulate/profile")
@dataclass(frozen=True, kw_only=True)
class RateProfile(Spec):
    """What one resource does with one model, in samples/s, and where that is known from."""

    samples_per_second: Annotated[float, POSITIVE]
    device: str = ""
    model: str = ""
    source: str = ""
