"""A published network without a last layer: what foundation models are, and how they teach.

DINOv2, DINOv3, SigLIP and CLIP know no classes of anybody's data. Their weights are taken as they
are; the file is one of ours, so that whoever serves it needs neither a hub nor another's names.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from kdlab.config.home import home, write_whole
from kdlab.config.kept import kept, key_of
from kdlab.config.seal import file_sha256
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec, Normalised, load_weights
from kdlab.models.tensor_files import is_complete


def bare(spec: ModelSpec, in_chans: int) -> Normalised:
    """The network without its last layer, with its weights.

    Raises:
        ModelError: it has no weights, or cannot be without a last layer.
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
            f"{spec.to_dict()['type']} cannot be without its last layer; networks of timm can."
        )
    if spec.weights is not None:
        load_weights(model.net, spec.weights_path(), spec.sha256, but=heads)
    return model


def bare_file(spec: ModelSpec, in_chans: int) -> Path:
    """Path of a file of its weights, written once for each network and origin."""
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

    return kept(path, lambda: path if is_complete(path) else None, make)
