"""The student as a folder that timm and a model hub read: weights, configuration, card."""

from pathlib import Path

from kdlab.errors import BadInput
from kdlab.models.exported import load_exported, spec_of
from kdlab.models.model import read_card
from kdlab.models.timm import TimmModel

_CARD = """---
library_name: timm
pipeline_tag: image-classification
license: {licence}
tags: [timm, image-classification, knowledge-distillation]
---

# {architecture}, distilled by kdlab

{classes} classes, images of {size} pixels.

```python
import timm

model = timm.create_model("local-dir:{folder}", pretrained=True).eval()
views = timm.data.create_transform(**timm.data.resolve_data_config({{}}, model=model))
```

{rest}"""


def write_timm_folder(student: Path, target: Path, licence: str) -> Path:
    """Write a folder that `timm.create_model("local-dir:...")` loads.

    Args:
        student: .safetensors of a student, its card beside it.
        target: the folder, made where it is not there.
        licence: of the weights, as a model hub names it: apache-2.0, cc-by-nc-4.0, other.

    Raises:
        BadInput: the student is no network of timm's.
    """
    spec = spec_of(student)
    if not isinstance(spec, TimmModel):
        raise BadInput(
            f"The student is {spec.component}, and timm loads its own networks only; "
            "--to safetensors, pt2 and onnx take any."
        )
    from timm.models import save_for_hf

    card = read_card(student)
    shown = card["input"]
    model = load_exported(student).net
    described = {
        "input_size": [card["in_chans"], shown["size"], shown["size"]],
        "mean": card["mean"],
        "std": card["std"],
        "crop_pct": shown.get("crop_pct", 1.0),
        "interpolation": shown.get("interpolation", "bilinear"),
        "num_classes": card["num_classes"],
        "label_names": card["classes"],
    }
    model.pretrained_cfg.update(described)  # type: ignore[union-attr, operator]  # a dict of timm's
    save_for_hf(
        model,
        target,
        model_config={"num_classes": card["num_classes"], "label_names": card["classes"]},
        model_args={"in_chans": card["in_chans"]},
        safe_serialization=True,
    )
    own = student.parent / "README.md"
    (target / "README.md").write_text(
        _CARD.format(
            licence=licence,
            architecture=spec.variant,
            classes=card["num_classes"],
            size=shown["size"],
            folder=target,
            rest=own.read_text(encoding="utf-8") if own.is_file() else "",
        ),
        encoding="utf-8",
    )
    return target
