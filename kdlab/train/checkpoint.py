"""Everything needed to go on exactly: safetensors for tensors, JSON for the rest.

A checkpoint is a folder `step_<n>` that is renamed into place when it is complete and
on disk. The JSON holds the hash of the tensors, so a damaged one is recognised and the
one before it is used.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kdlab.config.home import write_json
from kdlab.errors import CheckpointError
from kdlab.messages import MessageError, plain, typed
from kdlab.models.model import file_sha256
from kdlab.train.recipe import OptimizerState, Stepper

KEEP = 2
FORMAT = 1  # of a checkpoint's folder; one of another format is refused
_FENCE = "fence.json"


class OfSpec(Protocol):
    """What any loop says in its checkpoint beside tensors: a dataclass."""

    @property
    def spec_hash(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """What is no tensor of an optimiser: single values by "parameter.name", and its groups."""

    optimizer_plain: dict[str, object]
    param_groups: list[dict[str, object]]


Facts = TypeVar("Facts", bound=OfSpec)


@dataclass(frozen=True, slots=True)
class Found(Generic[Facts]):
    """A checkpoint that was loaded, and notes on newer ones that are damaged."""

    tensors: dict[str, Tensor]
    facts: Facts
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    sha256: str
    spec_hash: str
    format: int = FORMAT  # those of 0.1 do not say theirs


def raise_fence(folder: Path) -> int:
    """From now on nobody who has an earlier number may save here; the new number.

    For whoever starts a generation of ranks: one that was given up as lost may still live
    somewhere, cut off from its group.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = _fence(folder) + 1
    write_json(folder / _FENCE, {"number": number})
    return number


def _fence(folder: Path) -> int:
    path = folder / _FENCE
    return int(json.loads(path.read_text())["number"]) if path.is_file() else 0


def _check_fence(folder: Path, number: int) -> None:
    newest = _fence(folder)
    if newest > number:
        raise CheckpointError(
            f"Another generation of ranks (fence {newest}) trains in {folder.parent}; this "
            f"process belongs to one that was given up as lost (fence {number}). It saves "
            "nothing and ends."
        )


def save(
    folder: Path,
    step: int,
    tensors: dict[str, Tensor],
    facts: OfSpec,
    fence: int = 0,
) -> Path:
    """Write one checkpoint and remove the oldest beyond two.

    `fence` is the number of the generation of ranks that saves; see `raise_fence`.

    Raises:
        CheckpointError: a later generation of ranks has begun meanwhile.
    """
    final = folder / f"step_{step:09d}"
    temporary = folder / f".{final.name}.{fence}.{os.getpid()}"
    _check_fence(folder, fence)
    for half in folder.glob(".step_*"):  # of a process that was killed in here
        shutil.rmtree(half, ignore_errors=True)
    temporary.mkdir(parents=True)
    state = temporary / "state.safetensors"
    save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, state)
    meta = temporary / "state.json"
    head = {"format": FORMAT, "step": step, "sha256": file_sha256(state)}
    meta.write_text(json.dumps(plain(facts) | head))
    for path in (state, meta):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _check_fence(folder, fence)  # as late as can be: another may have begun
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in _steps(folder)[:-KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load_newest(
    folder: Path,
    spec_hash: str,
    kind: type[Facts],
    fits: Callable[[Facts], bool] = lambda facts: True,
) -> Found[Facts] | None:
    """The newest complete checkpoint, with facts of this kind.

    `fits` may pass over those that are too new.

    Raises:
        CheckpointError: it was written for another spec, or by another version of kdlab.
    """
    notes: list[str] = []
    for path in reversed(_steps(folder)):
        try:
            saved = json.loads((path / "state.json").read_text())
            head = typed(_Head, saved)
            if file_sha256(path / "state.safetensors") != head.sha256:
                raise ValueError("the tensors differ from their recorded hash")
            tensors = load_file(path / "state.safetensors")
        except (OSError, ValueError, MessageError) as error:
            notes.append(
                f"checkpoint {path.name} is damaged ({error}); using the one before"
            )
            continue
        if head.format != FORMAT:
            raise CheckpointError(
                f"{path} has checkpoint format {head.format}, this kdlab reads {FORMAT}. "
                "Resume with the version that wrote it, or start a new run."
            )
        if head.spec_hash != spec_hash:
            raise CheckpointError(
                f"{path} was written for spec {head.spec_hash}, this run has "
                f"{spec_hash}. A resumed run must have the spec it was started with; "
                "start a new run for another one."
            )
        facts = typed(kind, saved)
        if fits(facts):
            return Found(tensors, facts, notes)
    return None


def _steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.is_dir())


def newest_step(folder: Path) -> int:
    """Step of the newest checkpoint; 0 when there is none."""
    steps = _steps(folder)
    return int(steps[-1].name.removeprefix("step_")) if steps else 0


def pack(model: nn.Module, optimizer: Stepper) -> tuple[dict[str, Tensor], OptimizerFacts]:
    """Model, optimiser and random state as flat tensors and plain facts."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    state = cast(OptimizerState, optimizer.state_dict())
    single: dict[str, object] = {}
    for index, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                single[f"{index}.{key}"] = value
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    groups = state["param_groups"]
    return tensors, OptimizerFacts(optimizer_plain=single, param_groups=groups)


def unpack(
    tensors: dict[str, Tensor],
    facts: OptimizerFacts,
    model: nn.Module,
    optimizer: Stepper,
    rank: int = 0,
) -> None:
    """The inverse of `pack`, in place.

    A rank that was there when it was saved goes on with its own random numbers.
    """
    model.load_state_dict(_below(tensors, "model."))
    state: dict[int, dict[str, object]] = {}
    values: dict[str, object] = {**_below(tensors, "optimizer."), **facts.optimizer_plain}
    for name, value in values.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": facts.param_groups})
    own = tensors.get(f"random.rank.{rank}")
    if own is not None:
        torch.set_rng_state(own)
    elif rank == 0:
        torch.set_rng_state(tensors["random.cpu"])
    if torch.cuda.is_available():
        own = tensors.get(f"random.cuda.{rank}")
        if own is None and rank == 0:
            own = tensors.get("random.cuda")
        if own is not None:
            torch.cuda.set_rng_state(own)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
