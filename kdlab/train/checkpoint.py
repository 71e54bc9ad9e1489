"""Everything needed to go on exactly: safetensors for tensors, JSON for the rest.

A checkpoint is a folder `step_<n>` that is renamed into place when it is complete and
on disk. The JSON holds the hash of the tensors, so a damaged one is recognised and the
one before it is used.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kdlab.errors import CheckpointError
from kdlab.models.model import file_sha256
from kdlab.train.recipe import Stepper

KEEP = 2


def save(
    folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]
) -> Path:
    """Write one checkpoint and remove the oldest beyond two."""
    final = folder / f"step_{step:09d}"
    temporary = folder / f".{final.name}.{os.getpid()}"
    for half in folder.glob(".step_*"):  # of a process that was killed in here
        shutil.rmtree(half, ignore_errors=True)
    temporary.mkdir(parents=True)
    state = temporary / "state.safetensors"
    save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, state)
    meta = temporary / "state.json"
    meta.write_text(json.dumps(facts | {"step": step, "sha256": file_sha256(state)}))
    for path in (state, meta):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in _steps(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


Found = tuple[dict[str, Tensor], dict[str, Any], list[str]]


def load_newest(
    folder: Path,
    spec_hash: str,
    fits: Callable[[dict[str, Any]], bool] = lambda facts: True,
) -> Found | None:
    """The newest complete checkpoint: tensors, facts, and notes on damaged ones.

    `fits` may pass over those that are too new.

    Raises:
        CheckpointError: it was written for another spec.
    """
    notes: list[str] = []
    for path in reversed(_steps(folder)):
        try:
            facts = json.loads((path / "state.json").read_text())
            if file_sha256(path / "state.safetensors") != facts["sha256"]:
                raise ValueError("the tensors differ from their recorded hash")
            tensors = load_file(path / "state.safetensors")
        except (OSError, ValueError, KeyError) as error:
            notes.append(
                f"checkpoint {path.name} is damaged ({error}); using the one before"
            )
            continue
        if facts["spec_hash"] != spec_hash:
            raise CheckpointError(
                f"{path} was written for spec {facts['spec_hash']}, this run has "
                f"{spec_hash}. A resumed run must have the spec it was started with; "
                "start a new run for another one."
            )
        if not fits(facts):
            continue
        return tensors, facts, notes
    return None


def _steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def newest_step(folder: Path) -> int:
    """Step of the newest checkpoint; 0 when there is none."""
    steps = _steps(folder)
    return int(steps[-1].name.removeprefix("step_")) if steps else 0


def pack(model: nn.Module, optimizer: Stepper) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Model, optimiser and random state as flat tensors and plain facts."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    state = optimizer.state_dict()
    plain: dict[str, Any] = {}
    for index, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                plain[f"{index}.{key}"] = value
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    return tensors, {"optimizer_plain": plain, "param_groups": state["param_groups"]}


def unpack(
    tensors: dict[str, Tensor],
    facts: dict[str, Any],
    model: nn.Module,
    optimizer: Stepper,
    rank: int = 0,
) -> None:
    """The inverse of `pack`, in place.

    A rank that was there when it was saved goes on with its own random numbers.
    """
    model.load_state_dict(_below(tensors, "model."))
    state: dict[int, dict[str, Any]] = {}
    for name, value in _below(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    for name, plain in facts["optimizer_plain"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = plain
    optimizer.load_state_dict({"state": state, "param_groups": facts["param_groups"]})
    own = tensors.get(f"random.rank.{rank}")
    if own is not None:
        torch.set_rng_state(own)
    elif rank == 0:
        torch.set_rng_state(tensors["random.cpu"])
    if torch.cuda.is_available() and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"])


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
