"""What a blockwise experiment needs before and around its ranks."""

import hashlib
import json
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
import yaml

from kdlab.data.images import ImageData
from kdlab.errors import BadInput
from kdlab.experiment.setup import TrainingSetup, network_of
from kdlab.experiment.spec import ExperimentSpec
from kdlab.methods.blockwise import planning
from kdlab.methods.blockwise.cutting import Cuts, Cutting, cut_both
from kdlab.methods.blockwise.profiling import paths_of, unmeasured
from kdlab.methods.blockwise.puzzle.choice import BlockChoice
from kdlab.methods.blockwise.puzzle.measured import engine_of
from kdlab.models.block_library import BlockLibrary
from kdlab.models.block_variants import variant_blocks
from kdlab.models.model import ModelSpec, Normalised, parameters
from kdlab.models.pixel_mean import fit_pixel_mean
from kdlab.models.proxyless import mixed_blocks
from kdlab.papers.pipe_bd.block_cost import Profile, StageCosts
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan, NoPlan, programme
from kdlab.train.recipe import Recipe
from kdlab.train.sync_norm import check_norms

if TYPE_CHECKING:
    from kdlab.methods.blockwise.method import Blockwise

_CPU = torch.device("cpu")


def cutting_of(
    cuts: Cuts,
    spec: ExperimentSpec,
    teacher: Normalised,
    data: ImageData,
    seed: int,
    device: torch.device,
) -> Cutting:
    """Both networks in pairs of blocks; the same student in every rank.

    Raises:
        ModelError: they cannot be cut so.
    """
    torch.manual_seed(seed)
    student = spec.student.build(len(data.classes), data.shape[0], refit=True)
    fit_pixel_mean(student, data.inputs, data.train)
    return cut_both(cuts, teacher, student, spec.student, data.shape, device)


def identity_of(
    spec: ExperimentSpec, cutting: Cutting, data: ImageData
) -> planning.Identity:
    """Identity of the profile that this experiment needs, here and now."""
    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    threads = spec.train.threads
    here = [platform.machine(), psutil.cpu_count(), devices, torch.__version__, threads]
    model = {  # whatever the cost of the blocks depends on
        "teacher": spec.teachers()[0].model.to_dict() | {"weights": None, "sha256": None},
        "student": spec.student.to_dict() | {"weights": None, "sha256": None},
        "cuts": [cutting.teacher_cuts, cutting.student_cuts],
        "shape": data.shape,
        "optimizer": spec.train.optimizer,
        "norms": getattr(spec.method, "bn", "sync"),  # they meet in what sharing costs
    }
    plain = Recipe()
    for name in ("precision", "accumulate"):
        # Where it is not as it always was: profiles of before are of that.
        if getattr(spec.train, name) != getattr(plain, name):
            model[name] = getattr(spec.train, name)
    return planning.Identity(_hash(here), _hash(model), spec.train.batch)


def _hash(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def memory_of(allowed_gb: float | None, device: torch.device, devices: int) -> float:
    """Bytes a device is allowed, or has: a GPU's own, or its share of what is free here."""
    if allowed_gb is not None:
        return 1e9 * allowed_gb
    if device.type == "cuda":
        # Of several ranks on one GPU each has its share.
        sharing = -(-devices // torch.cuda.device_count())
        return float(torch.cuda.get_device_properties(device).total_memory) / sharing
    return psutil.virtual_memory().available / devices


def smallest_batch(chosen: ExecutionPlan) -> int:
    """A smaller rest of an epoch joins the batch before: two rows for each device."""
    return 2 * chosen.widest


def check(method: "Blockwise", setup: TrainingSetup) -> None:
    """All that can be wrong with cuts, devices, memory and profile, before a start.

    Raises:
        BadInput: what, in one message.
    """
    spec, data = setup.spec, setup.data
    if isinstance(spec.student, BlockLibrary):
        _check_library(spec.student, spec)
    with torch.random.fork_rng():
        teacher = network_of(spec, data)
        cutting = cutting_of(method.cuts, spec, teacher, data, 0, _CPU)
    if method.choose is not None:
        _check_choice(method.choose, cutting)
    if method.search is not None and not mixed_blocks(cutting.student):
        raise BadInput(
            f"method.search is set, and {spec.student.component} has nothing to choose from. "
            "Use a supernet as student, such as models/proxyless_supernet."
        )
    if method.profile is not None:
        found = planning.read_profile(
            Path(method.profile),
            identity_of(spec, cutting, data),
            # Workers may be other machines; their ranks look again.
            any_machine=spec.workers is not None,
        )
        if len(found.devices) != method.devices:
            raise BadInput(
                f"{method.profile} was measured on {len(found.devices)} devices, "
                f"method.devices is {method.devices}."
            )
    paths = paths_of(cutting.student)
    blocks = unmeasured(cutting.pairs, cutting.shapes, spec.train.batch, paths)
    profile = Profile(
        types={"any": blocks},
        devices=("any",) * method.devices,
        memory_bytes=_known_memory(method, spec),
    )
    costs = StageCosts(profile, spec.train.batch, lead=method.lead)
    if method.bn == "sync":
        for pair in cutting.pairs:
            check_norms(pair.student)
    for name in method.plans():
        try:
            made = programme(name, costs)
        except NoPlan as error:
            raise BadInput(str(error)) from error
        least = smallest_batch(made)
        if spec.train.batch < least:
            raise BadInput(
                f"train.batch is {spec.train.batch} and plan: {name} may share a batch by "
                f"{made.widest} devices; each needs at least two rows: {least}."
            )


def _check_library(library: BlockLibrary, spec: ExperimentSpec) -> None:
    """Whether its blocks stand in for those of this teacher."""
    own, teacher = (
        m.without_weights().to_dict() | {"mean": None, "std": None}
        for m in (library.of, spec.teachers()[0].model)
    )
    if own != teacher:
        apart = sorted(k for k in own | teacher if own.get(k) != teacher.get(k))
        raise BadInput(
            f"student.of is another network than the teacher ({', '.join(apart)} differ), whose "
            "blocks it is to have stand-ins for. Give both the same type and settings."
        )


def _check_choice(choice: BlockChoice, cutting: Cutting) -> None:
    """Whether the engine is here, and anything is as small as it is asked for."""
    engine_of(choice.engine)
    if choice.smaller is None:
        return
    whole, least = 0, 0
    for pair in cutting.pairs:
        own = parameters(pair.teacher)
        each = [
            parameters(variant)
            for block in variant_blocks(pair.student)
            for variant in block.variants.values()
        ]
        whole, least = whole + own, least + min([own, *each])
    if least * choice.smaller > whole:
        raise BadInput(
            f"method.choose.smaller is {choice.smaller:g}, and with the smallest stand-ins the "
            f"student has {least:,} of {whole:,} parameters: {whole / max(1, least):.2f} times "
            "fewer. Ask for less, or offer smaller student.variants."
        )


def _known_memory(method: "Blockwise", spec: ExperimentSpec) -> tuple[float, ...] | None:
    """Memory of each device in bytes, where it is known here: Dask workers say it later."""
    if spec.workers is not None and method.memory_gb is None:
        return None
    device = torch.device(spec.train.chosen_device())
    return (memory_of(method.memory_gb, device, method.devices),) * method.devices


def write_architecture(found: ModelSpec, folder: Path) -> str:
    """What a search or a choice found, as a card of a model: copy it into a project's registry."""
    path = folder / "architecture.yaml"
    head = (
        "about: Found by a search or a choice of kdlab; teacher and data are in its run.\n"
    )
    body = {k: v for k, v in found.to_dict().items() if v is not None}
    path.write_text(head + yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return str(path)
