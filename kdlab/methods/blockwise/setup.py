"""Prepare a blockwise experiment: networks, identity of a profile, memory and batches."""

import hashlib
import json
import platform
from pathlib import Path

import psutil
import torch
import yaml

from kdlab.data.images import ImageData
from kdlab.experiment.spec import ExperimentSpec
from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.cutting import Cuts, Cutting, cut_both
from kdlab.methods.blockwise.pairs import inherit_variants, weigh_channels
from kdlab.methods.blockwise.profiling import copies
from kdlab.models.block_variants import variant_blocks
from kdlab.models.model import ModelSpec, Normalised
from kdlab.models.pixel_mean import fit_pixel_mean
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.train.inherited import inherit, some_views
from kdlab.train.recipe import Recipe


def cutting_of(
    cuts: Cuts,
    spec: ExperimentSpec,
    teacher: Normalised,
    data: ImageData,
    seed: int,
    device: torch.device,
    *,
    fits: bool,
) -> Cutting:
    """Cut both networks into pairs of blocks; the student is the same in every rank.

    `seed` is of the student's first weights. With `fits` stand-ins are fitted to the teacher's
    layers: not where a checkpoint replaces the student's weights, or where only sizes count.

    Raises:
        ModelError: the networks cannot be cut so.
    """
    torch.manual_seed(seed)
    student = spec.student.build(len(data.classes), data.shape[0], refit=True)
    fit_pixel_mean(student, data.inputs, data.train)
    teacher, relative = teacher.to(device), cuts.block_loss == "relative"
    views = some_views(teacher, data) if fits or relative else None
    inherited = cuts.inherits and spec.student.origin() is None
    if inherited:
        inherited = inherit(student.to(device), teacher, views if fits else None)
    cutting = cut_both(
        cuts, teacher, student, spec.student, data.shape, device, inherited=inherited
    )
    if fits and views is not None and variant_blocks(student):
        inherit_variants(cutting.pairs, views)
    if relative and views is not None:
        weigh_channels(cutting.pairs, views)
    return cutting


def identity_of(
    spec: ExperimentSpec, cutting: Cutting, data: ImageData
) -> planning.Identity:
    """Return the identity of a profile that this experiment can use on this machine."""
    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    threads = spec.train.threads
    machine = [platform.machine(), psutil.cpu_count(), devices, torch.__version__, threads]
    model = {  # all that the cost of the blocks depends on
        "teacher": spec.teachers()[0].model.to_dict() | {"weights": None, "sha256": None},
        "student": spec.student.to_dict() | {"weights": None, "sha256": None},
        "cuts": [cutting.teacher_cuts, cutting.student_cuts],
        "shape": data.shape,
        "optimizer": spec.train.optimizer,
        "norms": getattr(spec.method, "bn", "sync"),  # `sync` norms meet in a shared stage
    }
    if cutting.same:
        model["same"] = cutting.same  # these cost nothing
    if (weights := copies(spec.train)) != copies(Recipe()):
        model["copies"] = weights
    if cutting.pairs[0].relayed > 1:
        model["follows"] = True  # twice as much is relayed
    for name in ("precision", "accumulate"):
        # Defaults are left out, so that profiles of before these settings still hold.
        if getattr(spec.train, name) != getattr(Recipe(), name):
            model[name] = getattr(spec.train, name)
    return planning.Identity(_hash(machine), _hash(model), spec.train.batch)


def _hash(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def memory_of(allowed_gb: float | None, device: torch.device, devices: int) -> float:
    """Return a device's bytes: those allowed, a GPU's own, or a share of the free memory."""
    if allowed_gb is not None:
        return 1e9 * allowed_gb
    if device.type == "cuda":
        # Ranks on one GPU share it.
        sharing = -(-devices // torch.cuda.device_count())
        return float(torch.cuda.get_device_properties(device).total_memory) / sharing
    return psutil.virtual_memory().available / devices


def smallest_batch(chosen: ExecutionPlan) -> int:
    """Return two rows for each device; a smaller rest of an epoch joins the batch before."""
    return 2 * chosen.widest


def write_architecture(network: ModelSpec, folder: Path) -> str:
    """Write a searched or chosen network as a model card; return its path."""
    path = folder / "architecture.yaml"
    head = "about: Found by a search or a choice of kdlab; its run has teacher and data.\n"
    body = {k: v for k, v in network.to_dict().items() if v is not None}
    path.write_text(head + yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return str(path)
