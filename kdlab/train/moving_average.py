"""A running mean of the weights, by timm: what is validated and exported in place of the newest."""

from typing import TYPE_CHECKING

from kdlab.models.model import Normalised

if TYPE_CHECKING:
    from timm.utils import ModelEmaV3


def moving_average(model: Normalised, decay: float) -> "ModelEmaV3":
    """A mean of weights and statistics; a function of its steps, so that a resume is exact.

    The decay grows from 0 to `decay` in the beginning (timm's warm-up): a mean over the first
    steps would hold on to weights that have learned nothing.
    """
    from timm.utils import ModelEmaV3

    return ModelEmaV3(model, decay=decay, use_warmup=True)
