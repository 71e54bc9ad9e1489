"""Any timm model: `timm/resnet18`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from kdlab.config import register
from kdlab.config.spec import SHARE
from kdlab.errors import Fault, ModelError
from kdlab.models.model import ModelSpec, Statistics
from kdlab.models.zoo import unknown_model


@register("timm/*")
@dataclass(frozen=True, kw_only=True)
class TimmModel(ModelSpec):
    """Any model of timm by its name, with its own normalisation.

    pretrained: timm's published weights (fetched from its hub when not cached).
    drop_rate: dropout before the last layer; null is the model's own.
    drop_path_rate: stochastic depth, of the deepest block; null is the model's own.
    """

    variant: str
    pretrained: bool = False
    drop_rate: Annotated[float, SHARE] | None = None
    drop_path_rate: Annotated[float, SHARE] | None = None

    def cross_faults(self) -> Iterator[Fault]:
        def known() -> list[str]:
            import timm

            return [name] if timm.is_model(name) else list(timm.list_models())

        name = self.variant.split(".")[0]  # what follows names weights
        yield from unknown_model("timm", name, known)

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        import timm

        drops = {"drop_rate": self.drop_rate, "drop_path_rate": self.drop_path_rate}
        try:
            model: nn.Module = timm.create_model(
                self.variant,
                pretrained=self.pretrained,
                num_classes=num_classes,
                in_chans=in_chans,
                **{name: rate for name, rate in drops.items() if rate is not None},
            )
        except TypeError as error:
            named = ", ".join(f"{k}={v:g}" for k, v in drops.items() if v is not None)
            raise ModelError(
                f"timm's {self.variant!r} does not take {named}: {error}"
            ) from error
        except (OSError, RuntimeError) as error:
            raise ModelError(f"timm could not make {self.variant!r}: {error}") from error
        return model

    def evaluation(self, size: int) -> Mapping[str, Any]:
        import timm

        facts = timm.get_pretrained_cfg(self.variant)
        return shown_by(vars(facts), size) if facts else {}

    def normalisation(self) -> Statistics:
        import timm

        facts = timm.get_pretrained_cfg(self.variant)
        return (tuple(facts.mean), tuple(facts.std)) if facts else super().normalisation()


def shown_by(facts: Mapping[str, Any], size: int) -> dict[str, Any]:
    """How an image is shown in a test, as timm reads its pretrained configuration.

    Args:
        facts: the configuration.
        size: pixels of a side; from its larger test size on what it says of that counts.
    """
    tested = facts.get("test_input_size")
    shares = [facts.get("test_crop_pct")] if tested and size >= tested[1] else []
    cubic = facts.get("interpolation") in (None, "", "bicubic")
    found = {
        "crop_pct": next((s for s in (*shares, facts.get("crop_pct")) if s), 0.875),
        "interpolation": "bicubic" if cubic else "bilinear",
        "crop_mode": facts.get("crop_mode") or "center",
    }
    if found["crop_mode"] == "border":
        found["fill"] = tuple(round(255 * mean) for mean in facts["mean"])
    return found
