"""Any timm model: `timm/resnet18`."""

from dataclasses import dataclass

from torch import nn

from kdlab.config import register
from kdlab.config.folders import nearest
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec, Statistics


@register("timm/*")
@dataclass(frozen=True, kw_only=True)
class TimmModel(ModelSpec):
    """Any model of timm by its name, with its own normalisation.

    pretrained: timm's published weights (fetched from its hub when not cached).
    """

    variant: str
    pretrained: bool = False

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        import timm

        if not timm.is_model(self.variant.split(".")[0]):
            raise ModelError(
                f"timm has no model {self.variant!r}.{nearest(self.variant, timm.list_models())}"
            )
        try:
            model: nn.Module = timm.create_model(
                self.variant,
                pretrained=self.pretrained,
                num_classes=num_classes,
                in_chans=in_chans,
            )
        except (OSError, RuntimeError) as error:
            raise ModelError(f"timm could not make {self.variant!r}: {error}") from error
        return model

    def normalisation(self) -> Statistics:
        import timm

        facts = timm.get_pretrained_cfg(self.variant)
        return (tuple(facts.mean), tuple(facts.std)) if facts else super().normalisation()
