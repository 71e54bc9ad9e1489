"""Rate of a machine at one task, as a card."""

from dataclasses import dataclass
from typing import Annotated

from kdlab.config import register
from kdlab.config.spec import POSITIVE, Spec


@register("simulate/profile")
@dataclass(frozen=True, kw_only=True)
class RateProfile(Spec):
    """Samples/s of one resource with one model; `source` says where the number is from."""

    samples_per_second: Annotated[float, POSITIVE]
    device: str = ""
    model: str = ""
    source: str = ""
