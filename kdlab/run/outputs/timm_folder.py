"""The student as a folder that timm, transformers, a model hub and kdlab read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from kdlab.config.home import write_json
from kdlab.config.seal import file_sha256
from kdlab.errors import BadInput
from kdlab.models.exported import spec_of
from kdlab.models.model import read_card
from kdlab.models.shrunk import ShrunkModel
from kdlab.models.timm import TimmModel

_CARD = """---
library_name: timm
pipeline_tag: image-classification
license: {licence}
tags: {tags}
---

# {architecture} on {dataset}

{classes} classes, images of {size} pixels.

| | |
| --- | --- |
| test top-1 | {accuracy} |
| teacher | {teacher} |
| licence of the weights | {licence_said} |
| made by | kdlab {kdlab_version}, run {run}, {member} |

```python
import timm  # where this folder is

model = timm.create_model("local-dir:{folder}", pretrained=True).eval()
views = timm.data.create_transform(**timm.data.resolve_data_config({{}}, model=model))
```

`kdlab predict {folder} photo.jpg` takes the folder, too: `model.json` says how it shows images.
"""


TIMM_FILES = ("model.safetensors", "model.json", "config.json", "README.md")


def write_timm_folder(student: Path, target: Path, facts: Mapping[str, Any]) -> Path:
    """Write a folder that `timm.create_model("local-dir:...")` loads.

    Args:
        student: .safetensors of a student, its card beside it.
        target: the folder, created where missing.
        facts: see `export_facts`.

    Raises:
        BadInput: the student is no timm network, or the folder holds other files.
    """
    spec, card = spec_of(student), read_card(student)
    state = load_file(student)
    if isinstance(spec, ShrunkModel):  # timm brings a photo to that size itself
        state = {name.removeprefix("inner."): tensor for name, tensor in state.items()}
        card |= {
            "model": spec.model.to_dict(),
            "input": card["input"] | {"size": spec.size},
        }
        spec = spec.model
    if not isinstance(spec, TimmModel):
        raise BadInput(
            f"The student is {spec.component}, but timm loads only its own networks; "
            "--to safetensors, pt2 and onnx take any."
        )
    is_ours = target.is_dir() and (target / "model.json").is_file()
    if not is_ours and target.is_dir() and any(target.iterdir()):
        raise BadInput(
            f"{target} holds other files, and the export would overwrite its README.md: give "
            "--out a new folder."
        )
    target.mkdir(parents=True, exist_ok=True)
    save_file(state, target / "model.safetensors")
    sha256 = file_sha256(target / "model.safetensors")
    write_json(target / "model.json", {**card, **facts, "sha256": sha256})
    write_json(target / "config.json", _config(spec, card, str(facts["licence"])))
    taught, licence = facts["teacher"] is not None, facts["licence"]
    tags = ["timm", "image-classification", spec.variant, "kdlab"]
    text = _CARD.format(
        **facts,
        tags=json.dumps(tags + ["knowledge-distillation"] * taught),
        architecture=spec.variant + ", distilled" * taught,
        classes=card["num_classes"],
        size=card["input"]["size"],
        folder=target.name,
        accuracy=f"{facts['test_top1']:.2f} % of {facts['test_images']:,} images",
        licence_said="unknown: say it with --licence" if licence == "unknown" else licence,
    )
    if not taught:
        text = text.replace("| teacher | None |", "| teacher | trained without a teacher |")
    (target / "README.md").write_text(text, encoding="utf-8")
    return target


def _config(spec: TimmModel, card: Mapping[str, Any], licence: str) -> dict[str, Any]:
    """The config.json that timm reads; the pretrained weights of that name play no part."""
    input_card, size = card["input"], card["input"]["size"]
    model = spec.without_weights().architecture(card["num_classes"], card["in_chans"])
    pretrained: Mapping[str, Any] = model.pretrained_cfg  # type: ignore[assignment]  # timm's
    layers = ("first_conv", "classifier", "fixed_input_size")
    return {
        "architecture": spec.variant.partition(".")[0],
        "num_classes": card["num_classes"],
        "num_features": model.num_features,
        "label_names": card["classes"],
        "model_args": {"in_chans": card["in_chans"], **spec.options},
        "pretrained_cfg": {
            **{name: pretrained[name] for name in layers if name in pretrained},
            "input_size": [card["in_chans"], size, size],
            "mean": card["mean"],
            "std": card["std"],
            "crop_pct": input_card.get("crop_pct", 1.0),
            "crop_mode": input_card.get("crop_mode", "center"),
            "interpolation": input_card.get("interpolation", "bilinear"),
            "license": licence,
        },
    }
