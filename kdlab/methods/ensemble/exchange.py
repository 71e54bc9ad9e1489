"""Exchange of models between workers: files by reference, with a hash.

Orders carry only the path; a worker reads a model from where its owner wrote it. A file that
changed since is not used.
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

# Prefixes of tensors beside a model: the memory of its aggregation, the global model where it
# differs, and the code that travels where the aggregation encodes.
MEMORY, WHOLE, SENT = "memory//", "whole//", "sent//"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Reference to a published local model."""

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
    """Write weights and buffers atomically, with the tensors `beside` them, by their names.

    Tensors beside the model are for a worker that returns. The size counts the `travelling` names;
    None counts all of the model.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().contiguous().cpu() for k, v in net.state_dict().items()}
    names = list(state) if travelling is None else travelling
    # Copies, since a tensor of the memory may also be one of the global model.
    state |= {k: v.detach().cpu().contiguous().clone() for k, v in (beside or {}).items()}
    size = sum(state[name].nbytes for name in names)
    write_whole(path, lambda temporary: save_file(state, temporary))
    return ModelFile(worker, str(path), file_sha256(path), size)


def fetch(file: ModelFile, beside: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of the model, on the CPU, or those `beside` it with this prefix.

    Raises:
        WeightsError: the file is missing, or differs from what was published.
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
            f"The model of worker {file.worker} at {path} has sha256 {digest[:16]} and was "
            f"published with {file.sha256[:16]}. It was not used."
        )
    tensors = from_bytes(content)
    if beside is None:
        return {k: v for k, v in tensors.items() if not k.startswith((MEMORY, WHOLE, SENT))}
    return {k.removeprefix(beside): v for k, v in tensors.items() if k.startswith(beside)}


def keep_momentum(file: ModelFile, train_step: TrainStep) -> None:
    """Save the optimizer state of a published model, for a process that replaces its worker."""
    tensors, facts = train_step.state()
    momentum = {
        name: tensor.detach().contiguous().cpu()
        for name, tensor in tensors.items()
        if not name.startswith("model.")
    }
    metadata = {"facts": json.dumps(to_builtins(facts))}
    write_whole(_momentum(file), lambda temporary: save_file(momentum, temporary, metadata))


def take_momentum(file: ModelFile, train_step: TrainStep) -> None:
    """Restore the state of `keep_momentum` in place, if there is any."""
    if _momentum(file).is_file():
        with safe_open(_momentum(file), "pt") as content:
            facts = from_json(OptimizerFacts, content.metadata()["facts"].encode())
            tensors = {k: content.get_tensor(k) for k in content.keys()}  # noqa: SIM118
        weights = {f"model.{k}": v for k, v in train_step.model.state_dict().items()}
        train_step.restore(tensors | weights, facts, rank=-1)


def _momentum(file: ModelFile) -> Path:
    return Path(file.path).with_suffix(".momentum")
