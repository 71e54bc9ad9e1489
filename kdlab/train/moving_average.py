"""Running mean of the weights (EMA, by timm), which is validated and exported instead of them."""

from typing import TYPE_CHECKING

from kdlab.models.model import Normalised

if TYPE_CHECKING:
    from timm.utils import ModelEmaV3


def moving_average(model: Normalised, decay: float) -> "ModelEmaV3":
    """Make a running mean of weights and statistics; it depends on steps only, for exact resumes.

    The decay grows from 0 to `decay` at first (timm's warm-up), to drop untrained weights.
    """
    from timm.utils import ModelEmaV3

    return ModelEmaV3(model, decay=decay, use_warmup=True)
