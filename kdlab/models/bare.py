"""Published networks without a last layer: foundation models as teachers.

DINOv2, DINOv3, SigLIP and CLIP have no classes of the data. Their weights are used unchanged,
written to a file of kdlab's, so that serving them needs neither a hub nor other names of tensors.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from kdlab.config.home import home, write_whole
from kdlab.config.kept import key_of, load_or_create
from kdlab.config.seal import file_sha256
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec, Normalised, load_weights
from kdlab.models.tensor_files import is_complete


def bare(spec: ModelSpec, in_chans: int) -> Normalised:
    """Load a network and its weights without its last layer.

    Raises:
        ModelError: it names no weights, or its last layer cannot be left out.
        WeightsError: its file is missing, damaged, or of another network.
    """
    if spec.origin() is None:
        raise ModelError(
            f"The teacher {spec.to_dict()['type']} is headless and has no weights: give it "
            "pretrained: true, or pretrained: or weights: with the path of a file."
        )
    model = replace(spec, weights=None, sha256=None).build(0, in_chans)
    facts = [getattr(part, "pretrained_cfg", None) for part in model.net.modules()]
    heads = next((dict(cfg).get("classifier") for cfg in facts if cfg), None)
    heads = (heads,) if isinstance(heads, str) else heads  # several: a distillation token
    if not isinstance(heads, tuple):
        raise ModelError(
            f"The last layer of {spec.to_dict()['type']} cannot be left out; that of networks of "
            "timm can. Choose one of them, or set headless: false."
        )
    if spec.weights is not None:
        load_weights(model.net, spec.weights_path(), spec.sha256, but=heads)
    return model


def bare_file(spec: ModelSpec, in_chans: int) -> Path:
    """Return the path of the headless weights, written once for each network and origin."""
    origin = spec.origin()
    source = file_sha256(Path(origin)) if origin and Path(origin).is_file() else origin
    if spec.weights is not None:
        source = file_sha256(spec.weights_path())
    key = key_of(json.dumps([spec.to_dict(), in_chans, source], sort_keys=True))
    path = home() / "teachers" / "headless" / f"{key}.safetensors"

    def make() -> Path:
        with torch.random.fork_rng():
            state = bare(spec, in_chans).net.state_dict()
        state = {name: tensor.contiguous() for name, tensor in state.items()}
        write_whole(path, lambda temporary: save_file(state, temporary))
        return path

    return load_or_create(path, lambda: path if is_complete(path) else None, make)
