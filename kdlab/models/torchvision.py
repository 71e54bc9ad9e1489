"""Any torchvision classification model: `torchvision/mobilenet_v3_small`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from kdlab.config import register
from kdlab.errors import Fault, ModelError
from kdlab.lazy import lazy
from kdlab.models.model import IMAGENET, ModelSpec
from kdlab.models.separable import like
from kdlab.models.zoo import unknown_model

zoo = lazy("torchvision.models")  # 1 s


@register("torchvision/*")
@dataclass(frozen=True, kw_only=True)
class TorchvisionModel(ModelSpec):
    """Any classification model of torchvision by its name.

    pretrained: torchvision's default weights (fetched when not cached); they fix the
        number of classes at 1,000 and of channels at 3.
    """

    statistics = IMAGENET
    variant: str
    pretrained: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        def known() -> list[str]:
            return list(zoo.list_models(module=zoo))

        yield from unknown_model("torchvision", self.variant, known)

    def evaluation(self, size: int) -> Mapping[str, Any]:
        """Return the preprocessing of the preset of its default weights."""
        preset = zoo.get_model_weights(self.variant).DEFAULT.transforms()
        return {
            "crop_pct": preset.crop_size[0] / preset.resize_size[0],
            "interpolation": "bicubic"
            if preset.interpolation.value == "bicubic"
            else "bilinear",
        }

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        options: dict[str, Any] = {"num_classes": num_classes}
        if self.variant in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": False}
        if self.pretrained:
            if num_classes != 1000:
                raise ModelError(
                    f"torchvision/{self.variant} with pretrained: true has 1000 classes, "
                    f"the data has {num_classes}. Use `weights:` with a file trained on it."
                )
            options["weights"] = "DEFAULT"
        net: nn.Module = zoo.get_model(self.variant, **options)
        return net if in_chans == 3 else _with_channels(net, in_chans)


def _with_channels(net: nn.Module, in_chans: int) -> nn.Module:
    """Replace the first convolution, since torchvision's models take three channels."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d):
            fresh = like(module, in_channels=in_chans, bias=module.bias is not None)
            parent, _, last = name.rpartition(".")
            setattr(net.get_submodule(parent), last, fresh)
            return net
    raise ModelError(
        f"{type(net).__name__} has no convolution to adapt to {in_chans} channels"
    )
