"""Models on their way from worker to worker: files by reference, with a hash.

Only the name travels with the orders; whoever needs a model reads it from where its maker
wrote it. A file that changed on the way is not used.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load as from_bytes
from safetensors.torch import save_file
from torch import Tensor, nn

from kdlab.codec import from_json, to_builtins
from kdlab.config.home import write_whole
from kdlab.config.seal import file_sha256
from kdlab.errors import WeightsError
from kdlab.train.checkpoint import OptimizerFacts
from kdlab.train.step import TrainStep

# Beside a model: what its aggregation remembers, and the global model where it is another.
# What travels in its place, where that is encoded, too.
MEMORY, WHOLE, SENT = "memory//", "whole//", "sent//"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A local model that can be fetched."""

    worker: int
    path: str
    sha256: str
    bytes: int  # of its tensors that travel


def publish(
    net: nn.Module,
    worker: int,
    path: Path,
    beside: Mapping[str, Tensor] | None = None,
    travelling: Collection[str] | None = None,
) -> ModelFile:
    """Write weights and buffers, whole or not at all; with others `beside`, by their names.

    What is beside is for whoever comes back; all of the model travels, or what is `travelling`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().contiguous().cpu() for k, v in net.state_dict().items()}
    names = list(state) if travelling is None else travelling
    # Copies: what is remembered may be the same tensor as what is global.
    state |= {k: v.detach().cpu().contiguous().clone() for k, v in (beside or {}).items()}
    size = sum(state[name].nbytes for name in names)
    write_whole(path, lambda temporary: save_file(state, temporary))
    return ModelFile(worker, str(path), file_sha256(path), size)


def fetch(file: ModelFile, beside: str | None = None) -> dict[str, Tensor]:
    """The tensors of the model, on the CPU; or those `beside` it under this name.

    Raises:
        WeightsError: the file is gone, or is not what was published.
    """
    path = Path(file.path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(
            f"The model of worker {file.worker} cannot be read at {path}: {error.strerror}. "
            "All workers need the run folder at the same path."
        ) from error
    digest = sha256(content).hexdigest()
    if digest != file.sha256:
        raise WeightsError(
            f"The model of worker {file.worker} at {path} has sha256 {digest[:16]}, it was "
            f"published with {file.sha256[:16]}. It was not used."
        )
    found = from_bytes(content)
    if beside is None:
        return {k: v for k, v in found.items() if not k.startswith((MEMORY, WHOLE, SENT))}
    return {k.removeprefix(beside): v for k, v in found.items() if k.startswith(beside)}


def keep_momentum(file: ModelFile, train_step: TrainStep) -> None:
    """What a published model does not hold, for a process that goes on in its worker's place."""
    tensors, facts = train_step.state()
    own = {
        name: tensor.detach().contiguous().cpu()
        for name, tensor in tensors.items()
        if not name.startswith("model.")
    }
    said = {"facts": json.dumps(to_builtins(facts))}
    write_whole(_momentum(file), lambda temporary: save_file(own, temporary, said))


def take_momentum(file: ModelFile, train_step: TrainStep) -> None:
    """The inverse, in place; nothing where nothing was kept."""
    if _momentum(file).is_file():
        with safe_open(_momentum(file), "pt") as found:
            facts = from_json(OptimizerFacts, found.metadata()["facts"].encode())
            tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118
        own = {f"model.{k}": v for k, v in train_step.model.state_dict().items()}
        train_step.restore(tensors | own, facts, rank=-1)


def _momentum(file: ModelFile) -> Path:
    return Path(file.path).with_suffix(".momentum")
