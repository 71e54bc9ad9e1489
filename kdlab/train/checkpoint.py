"""Checkpoints for an exact resume: safetensors for tensors, JSON for the rest.

A checkpoint is a folder `step_<n>` that is sealed (config/seal.py) and renamed into place
when it is complete and on disk. Any damage to one is detected, and the one before it is used.
Where all are damaged, training restarts only on request.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kdlab.changes.change import Back
from kdlab.codec import Count, MessageError, from_builtins, to_builtins
from kdlab.config.home import find_as, make_private, read_as, read_object, write_json
from kdlab.config.seal import DamagedFolder, check, damage, seal, sealed
from kdlab.errors import CheckpointError
from kdlab.train.kept import RevertPoint, step_of, steps
from kdlab.train.recipe import OptimizerState, Stepper

KEEP = 2
FORMAT = 2  # of a checkpoint's folder; one of another format is refused
_FENCE = "fence.json"


class SpecFacts(Protocol):
    """Facts of any loop in its checkpoint, beside tensors: a dataclass."""

    @property
    def spec_hash(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class OptimizerFacts:
    """State of an optimizer that is not tensors: values by "parameter.name", and its groups."""

    optimizer_plain: dict[str, object]
    param_groups: list[dict[str, object]]
    scaler: dict[str, int | float] = field(
        default_factory=dict
    )  # of gradients; may be empty


Facts = TypeVar("Facts", bound=SpecFacts)


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint(Generic[Facts]):
    """A loaded checkpoint, and notes on newer ones that are damaged."""

    tensors: dict[str, Tensor]
    facts: Facts
    notes: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    spec_hash: str
    format: int


@dataclass(frozen=True, slots=True)
class _Fence:
    number: Count


def raise_fence(folder: Path) -> int:
    """Forbid earlier generations of ranks to save here; return the number of the new one.

    A rank that was given up as lost may still live somewhere, cut off from its group.
    """
    make_private(folder)
    number = _fence(folder) + 1
    write_json(folder / _FENCE, to_builtins(_Fence(number)))
    return number


def _fence(folder: Path) -> int:
    cure = (
        "It holds the generation of ranks that may save. If no other process trains this run, "
        "delete it and resume."
    )
    fence = find_as(_Fence, folder / _FENCE, cure)
    return fence.number if fence else 0


def _check_fence(folder: Path, number: int) -> None:
    newest = _fence(folder)
    if newest > number:
        raise CheckpointError(
            f"Another generation of ranks (fence {newest}) trains in {folder.parent}; this "
            f"process belongs to one that was given up as lost (fence {number}). It saves "
            "nothing and ends."
        )


def save(
    folder: Path, step: int, tensors: dict[str, Tensor], facts: SpecFacts, fence: int = 0
) -> Path:
    """Write one checkpoint; keep the two newest and the one that `back` returns to.

    `fence` is the number of the generation of ranks that saves; see `raise_fence`.

    Raises:
        CheckpointError: a later generation of ranks has begun.
    """
    final = folder / f"step_{step:09d}"
    temporary = folder / f".{final.name}.{fence}.{os.getpid()}"
    _check_fence(folder, fence)
    for half in folder.glob(".step_*"):  # left by a killed process, or undone
        shutil.rmtree(half, ignore_errors=True)
    make_private(temporary)
    try:
        state = temporary / "state.safetensors"
        save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, state)
        meta = temporary / "state.json"
        meta.write_text(json.dumps(to_builtins(facts) | {"step": step}))
        head = _Head(spec_hash=facts.spec_hash, format=FORMAT)
        seal(temporary, (state.name, meta.name), to_builtins(head))
    except BaseException:  # a full disk: free the space of half a checkpoint
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _check_fence(folder, fence)  # as late as possible: another may have begun
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    good = RevertPoint.read(folder).good
    for old in steps(folder)[:-KEEP]:
        if step_of(old) != good:
            shutil.rmtree(old, ignore_errors=True)
    return final


def load_newest(
    folder: Path,
    spec_hash: str,
    kind: type[Facts],
    fits: Callable[[Facts], bool] = lambda facts: True,
) -> LoadedCheckpoint[Facts] | None:
    """Load the newest complete checkpoint, with facts of this kind.

    `fits` may skip those that are too new.

    Raises:
        CheckpointError: it was written for another spec, or by another version of kdlab; or
            there are checkpoints, and all are damaged.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(steps(folder)):
        try:
            head = from_builtins(_Head, _checked(path))
        except (DamagedFolder, MessageError) as error:
            damaged[path] = str(error)
            continue
        if head.format != FORMAT:
            raise CheckpointError(
                f"{path} has checkpoint format {head.format}, this kdlab reads {FORMAT}. "
                "Resume with the version that wrote it, or start a new run."
            )
        if head.spec_hash != spec_hash:
            raise CheckpointError(
                f"{path} was written for spec {head.spec_hash}, this run has "
                f"{spec_hash}. A resumed run must have the spec it was started with, and a "
                "version of kdlab whose specs have the same fields; start a new run for another."
            )
        facts = read_as(kind, path / "state.json")
        if fits(facts):
            tensors = load_file(path / "state.safetensors")
            return LoadedCheckpoint(tensors, facts, _notes(damaged, step_of(path)))
    if damaged:
        listed = "".join(f"\n  {path.name}: {why}" for path, why in damaged.items())
        raise CheckpointError(
            f"No checkpoint in {folder} can be used:{listed}\n"
            f"Nothing was trained: a restart would lose all work up to number "
            f"{step_of(next(iter(damaged)))}. To restart anyway: kdlab resume RUN --anew, which "
            "keeps the damaged checkpoints beside the new ones."
        )
    return None


def _checked(path: Path) -> dict[str, object]:
    """Check a checkpoint and return the facts of its seal.

    Raises:
        DamagedFolder: one of its files has changed.
        CheckpointError: it has no seal, since an earlier version wrote it.
    """
    if not sealed(path) and (path / "state.json").is_file():
        with contextlib.suppress(OSError, ValueError, MessageError):
            if "sha256" in read_object(path / "state.json"):
                raise CheckpointError(
                    f"{path} has checkpoint format 1, this kdlab reads {FORMAT}. Resume with "
                    "the version that wrote it, or start a new run."
                )
    return check(path, hashes=True)


def _notes(damaged: Mapping[Path, str], used: int) -> list[str]:
    """Write a line for each damaged newer checkpoint, with what is trained again."""
    return [
        f"checkpoint {path.name} is damaged ({why}); going on from number {used}: what was "
        f"trained up to {step_of(path)} is trained again"
        for path, why in damaged.items()
    ]


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint; 0 where there is none."""
    folders = steps(folder)
    return step_of(folders[-1]) if folders else 0


def go_back(folder: Path, order: Back) -> str | None:
    """Make a checkpoint the newest, or return why it cannot be used.

    Newer ones are deleted with the next save. If killed meanwhile, it is repeated.
    """
    why = damage(folder / f"step_{order.step:09d}", hashes=True)
    for path in [] if why else reversed(steps(folder)):
        if step_of(path) > order.step:
            path.rename(path.with_name(f".{path.name}.undone"))
    way = RevertPoint.read(folder)
    if not why and order.step <= way.good:
        way = RevertPoint(values={**way.values, **order.set})
    replace(way, gone=order.time).write(folder)
    return why


def set_aside(folder: Path) -> list[Path]:
    """Rename the checkpoints of a training if all are damaged; return their new paths."""
    folders = steps(folder)
    if not folders or any(damage(path, hashes=True) is None for path in folders):
        return []
    moved = []
    for path in folders:
        target = path.with_name(f"damaged_{path.name}.{int(time.time())}")
        path.rename(target)
        moved.append(target)
    return moved


def pack(model: nn.Module, optimizer: Stepper) -> tuple[dict[str, Tensor], OptimizerFacts]:
    """Return model, optimizer and random state as flat tensors and plain facts."""
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
    groups = [dict(group) for group in state["param_groups"]]
    for number, group in enumerate(groups):  # timm's Lamb counts its steps there
        for key in [k for k, value in group.items() if isinstance(value, Tensor)]:
            tensors[f"optimizer_group.{number}.{key}"] = group.pop(key)
    return tensors, OptimizerFacts(optimizer_plain=single, param_groups=groups)


def unpack(
    tensors: dict[str, Tensor],
    facts: OptimizerFacts,
    model: nn.Module,
    optimizer: Stepper,
    rank: int = 0,
) -> None:
    """Restore the state of `pack` in place.

    A rank that took part in the save continues with its own random numbers.
    """
    model.load_state_dict(_below(tensors, "model."))
    state: dict[int, dict[str, object]] = {}
    values: dict[str, object] = {**_below(tensors, "optimizer."), **facts.optimizer_plain}
    for name, value in values.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    groups = [dict(group) for group in facts.param_groups]
    for name, value in _below(tensors, "optimizer_group.").items():
        index, _, key = name.partition(".")
        groups[int(index)][key] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    random_state = tensors.get(f"random.rank.{rank}")
    if random_state is not None:
        torch.set_rng_state(random_state)
    elif rank == 0:
        torch.set_rng_state(tensors["random.cpu"])
    if torch.cuda.is_available():
        random_state = tensors.get(f"random.cuda.{rank}")
        if random_state is None and rank == 0:
            random_state = tensors.get("random.cuda")
        if random_state is not None:
            torch.cuda.set_rng_state(random_state)


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
