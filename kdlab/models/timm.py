"""Any timm model: `timm/resnet18`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Annotated, Any

import torch
from torch import nn

from kdlab.config import register
from kdlab.config.folders import nearest
from kdlab.config.spec import SHARE
from kdlab.errors import Fault, ModelError
from kdlab.lazy import lazy
from kdlab.models.model import ModelSpec, Statistics
from kdlab.models.published import published
from kdlab.models.zoo import unknown_model

timm = lazy("timm")  # 3 s
_MOST = 10_000  # of a whole number: pixels, layers, channels


@register("timm/*")
@dataclass(frozen=True, kw_only=True)
class TimmModel(ModelSpec):
    """Any model of timm by its name, with its normalisation.

    pretrained: true takes its published weights from an installed package (`kdlab[pretrained]`
        has those of tf_efficientnet_lite0), KDLAB_HOME/pretrained/NAME.safetensors, or the hub;
        a path names their file, as timm or the authors publish it, or its folder.
    drop_rate: dropout before the last layer; null takes the model's default.
    drop_path_rate: stochastic depth, of the deepest block; null takes the model's default.
    options: further arguments of this model in timm, such as img_size, dynamic_img_size or
        patch_size of a ViT.
    """

    variant: str
    pretrained: bool | str = False
    drop_rate: Annotated[float, SHARE] | None = None
    drop_path_rate: Annotated[float, SHARE] | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def cross_faults(self) -> Iterator[Fault]:
        def known() -> list[str]:
            return [name] if timm.is_model(name) else list(timm.list_models())

        name = self.variant.split(".")[0]  # without the tag of weights
        unknown = list(unknown_model("timm", name, known))
        yield from unknown or (_option_faults(self) if self.options else ())

    @property
    def _kwargs(self) -> dict[str, Any]:
        drops = {"drop_rate": self.drop_rate, "drop_path_rate": self.drop_path_rate}
        return {**self.options, **{k: v for k, v in drops.items() if v is not None}}

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return _create(self.variant, self._kwargs, self.pretrained, num_classes, in_chans)

    def origin(self) -> str | None:
        if self.weights is not None or not self.pretrained:
            return self.weights
        place = published(self.variant, self.pretrained).place
        if isinstance(self.pretrained, str):
            return place
        return f"timm/{self.variant} from {place} (a last layer of other classes begins afresh)"

    def evaluation(self, size: int) -> Mapping[str, Any]:
        facts = timm.get_pretrained_cfg(self.variant)
        return shown_by(vars(facts), size) if facts else {}

    def normalisation(self) -> Statistics:
        facts = timm.get_pretrained_cfg(self.variant)
        return (tuple(facts.mean), tuple(facts.std)) if facts else super().normalisation()


def _create(
    name: str,
    arguments: Mapping[str, Any],
    pretrained: bool | str,
    classes: int,
    channels: int,
) -> nn.Module:
    kind: dict[str, Any] = {"num_classes": classes, "in_chans": channels}
    if pretrained:
        overlay = dict(published(name, pretrained).overlay())
        kind |= {"pretrained": True, "pretrained_cfg_overlay": overlay}
        if not classes:  # with the file's number of classes timm loads strictly
            kind["num_classes"] = timm.get_pretrained_cfg(name).num_classes
    try:
        model: Any = timm.create_model(name, **kind, **arguments)
        if kind["num_classes"] != classes:
            model.reset_classifier(classes)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"timm could not make {name!r}: {error}") from error
    except Exception as error:  # of any kind: timm's classes do not check arguments
        if not arguments:
            raise
        named = ", ".join(f"{k}={v}" for k, v in arguments.items())
        raise ModelError(f"timm's {name!r} does not take {named}: {error}") from error
    assert isinstance(model, nn.Module)
    return model


_tried: dict[str, list[Fault]] = {}  # by repr: equal specs are created many times


def _option_faults(spec: TimmModel) -> list[Fault]:
    """Find faults of its options, by creating the model without memory for its weights."""
    if (key := repr(spec)) not in _tried:
        _tried[key] = [*_large_options(spec.options)] or _unknown_options(spec)
        try:
            with torch.device("meta"):
                _tried[key] or _create(spec.variant, spec._kwargs, False, 10, 3)
        except ModelError as error:
            _tried[key] = [Fault("options", f"cannot be used: {error}")]
    return _tried[key]


def _unknown_options(spec: TimmModel) -> list[Fault]:
    """Find options that the model's class does not take; create_model's may read files."""
    with torch.device("meta"):
        net = type(_create(spec.variant, {}, False, 10, 3))
    known = {name for cls in net.__mro__[:-2] for name in signature(cls).parameters}
    known -= {*signature(timm.create_model).parameters, "args", "num_classes", "in_chans"}
    has = f"is no argument of timm's {spec.variant} ({net.__name__})."
    return [
        Fault(f"options.{name}", has + nearest(name, sorted(known)))
        for name in spec.options
        if name not in known
    ]


def _large_options(options: Mapping[str, Any]) -> Iterator[Fault]:
    """Find numbers so large that creating the model would take hours."""
    for name, value in options.items():
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int) and number > _MOST:
                yield Fault(f"options.{name}", f"is {number}, must be at most {_MOST:,}")


def shown_by(facts: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the test preprocessing in timm's pretrained configuration.

    Args:
        facts: the configuration.
        size: pixels of a side; from its test_input_size on, test_crop_pct counts.
    """
    tested = facts.get("test_input_size")
    shares = [facts.get("test_crop_pct")] if tested and size >= tested[1] else []
    cubic = facts.get("interpolation") in (None, "", "bicubic")
    shown = {
        "crop_pct": next((s for s in (*shares, facts.get("crop_pct")) if s), 0.875),
        "interpolation": "bicubic" if cubic else "bilinear",
        "crop_mode": facts.get("crop_mode") or "center",
    }
    if shown["crop_mode"] == "border":
        shown["fill"] = tuple(round(255 * mean) for mean in facts["mean"])
    return shown
