"""Hash of everything a teacher's weights depend on; it names their folder."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kdlab.config import registry
from kdlab.config.folders import located
from kdlab.config.kept import key_of
from kdlab.config.registry import component_names
from kdlab.config.seal import file_sha256
from kdlab.errors import ModelError, NotFoundError
from kdlab.models.model import ModelSpec
from kdlab.models.published import file_at

# Fields added since, with the value that leaves old hashes unchanged.
_ADDED_TO_TEACHERS: Mapping[str, object] = {
    "backbone": None,
    "probe": False,
    "headless": False,
}
_ADDED_TO_TIMMS: Mapping[str, object] = {
    "drop_rate": None,
    "drop_path_rate": None,
    "options": {},
}
_ADDED_TO_DATA: Mapping[str, object] = {"labels_per_class": None}
_ADDED_TO_SAMPLING: Mapping[str, object] = {"labelled_only": False}
_ADDED_TO_RECIPES: Mapping[str, object] = {
    "optimizer_options": {},
    "layer_decay": None,
    "schedule_options": {},
    "patience": 5,
    "hard_loss": "cross_entropy",
    "accumulate": 1,
    "ema": None,
    "quantise_after": None,
}


def network_key(model: ModelSpec, sha256: str) -> str:
    """Return 16 hex digits for weights and their network, such as its size or timm options."""
    network = json.dumps(model.without_weights().to_dict(), sort_keys=True)
    return key_of(f"{sha256} {network}")


def _without(block: dict[str, Any], added: Mapping[str, object]) -> None:
    for name, default in added.items():
        if name in block and block[name] == default:
            del block[name]


def _prepare_timm(tree: Any) -> None:
    """Drop added fields of timm's models at any depth; hash the files that `pretrained` names."""
    if not isinstance(tree, dict):
        return
    kind = str(tree.get("type", ""))
    if kind.startswith("timm/"):
        _without(tree, _ADDED_TO_TIMMS)
        if isinstance(tree.get("pretrained"), str):
            with suppress(ModelError, NotFoundError):  # no such file: its path stays
                path = file_at(tree["pretrained"], kind.removeprefix("timm/"))
                tree["pretrained"] = file_sha256(path)
    for inner in tree.values():
        _prepare_timm(inner)


def hash_of(parts: dict[str, Any], identity: str) -> str:
    """Hash a teacher's spec as plain data, which is modified, and the identity of its images."""
    # The weights do not depend on these
    for name in ("min_top1", "weight", "classes", "name", "size"):
        parts.pop(name)
    recipe = parts["recipe"] or {}
    # Hashes of teachers that were trained earlier do not change.
    _without(recipe, _ADDED_TO_RECIPES)
    _without(parts, _ADDED_TO_TEACHERS)
    data = parts["data"] or {}
    _without(data, _ADDED_TO_DATA)
    _without(data.get("sampling", {}), _ADDED_TO_SAMPLING)
    _prepare_timm(parts["model"])
    for name in list(recipe):
        if name.startswith(("log_", "checkpoint_", "threads", "device")):
            del recipe[name]
    backbone = parts.get("backbone")
    if backbone is not None:  # its content counts, not its path
        parts["backbone"] = file_sha256(Path(located(backbone)).expanduser())
    if parts.get("probe"):
        parts["recipe"] = None
    # A component from a notebook cell is identified by its source, not only by its name.
    cells = {name: registry.cell_source(name) for name in sorted(component_names(parts))}
    text = json.dumps([parts, identity, cells], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
