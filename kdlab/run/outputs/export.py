"""`kdlab export`: the student of a run, loadable without kdlab, or its global model."""

import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from kdlab.config.check import construct
from kdlab.config.folders import user_path
from kdlab.config.load import from_dict
from kdlab.errors import BadInput, NotFoundError
from kdlab.experiment import folder as folders
from kdlab.experiment.folder import RunFolder
from kdlab.models.model import ModelSpec, read_card
from kdlab.report.costs import cost_table
from kdlab.run.outputs.student_files import member_folder, started, student_file
from kdlab.tracking.names import teacher_name
from kdlab.train.result import MemberResult

_RUNS = {
    "pt2": """\
    import torch

    model = torch.export.load({path!r}).module()
    scores = model(pixels)  # uint8 (N, C, H, W) to (N, classes); it normalises itself""",
    "onnx": """\
    import onnxruntime

    session = onnxruntime.InferenceSession({path!r})
    (scores,) = session.run(["scores"], {{"pixels": pixels}})  # uint8 (N, C, H, W), of any size
    classes = session.get_modelmeta().custom_metadata_map["classes"]  # JSON""",
}
_RUNS["int8"] = _RUNS["onnx"]
_FOLDER = """\
    import timm

    model = timm.create_model("local-dir:{path}", pretrained=True)"""


def export_student(
    run_id: str,
    *,
    to: str,
    out: str | None,
    member: str | None,
    best: bool,
    licence: str | None = None,
    bare: bool = False,
) -> str:
    """Write the student and its JSON card; return how to load it, and its costs, in words.

    Arguments are those of `kdlab export`; without a member it takes the best on validation.

    Raises:
        BadInput, ModelError: see kdlab/run/outputs/export_formats.py.
        NotFoundError: no such run or member, or it has no student yet.
    """
    run = folders.find(run_id)
    source, taken = student_file(run, member, best=best)
    folder, facts = source.parent, export_facts(run, source, licence)
    target = _student_target(out, to)
    target.parent.mkdir(parents=True, exist_ok=True)
    name = folder.relative_to(run.path / "members").as_posix().removesuffix("/whole")
    if to == "timm":
        from kdlab.run.outputs.timm_folder import TIMM_FILES, write_timm_folder  # torch

        written = write_timm_folder(source, target, facts)
        _make_readable(written, *(written / name for name in TIMM_FILES))
        files = f"{target}\n{taken}".rstrip()
        return f"{name}\n{files}\n\nLoad it:\n{_FOLDER.format(path=str(target))}"
    from kdlab.run.outputs.export_formats import StudentWithTeacher, ship  # imports torch

    card, beside, checked = read_card(source), StudentWithTeacher(run, source), ""
    inside = card | facts | {"model": {"type": card["model"]["type"]}}
    if to == "safetensors":
        shutil.copyfile(source, target)
    elif to == "int8":
        from kdlab.run.outputs.quantised import quantise

        quantised = quantise(beside.student, beside.data(), target, inside, bare=bare)
        checked = f"\n\n{quantised}"
    elif to in ("pt2", "onnx"):
        shipped = ship(beside.student, beside.images(), to, target, inside, bare=bare)
        checked = f"\n{shipped}"
    else:
        torch.save(load_file(source), target)
    shutil.copyfile(source.with_suffix(".json"), target.with_suffix(".json"))
    _make_readable(target, target.with_suffix(".json"))
    files = f"{target}\n{target.with_suffix('.json')}\n{taken}".rstrip()
    how = _how_graph(to, card, target, bare=bare) if to in _RUNS else _how(card, target)
    return f"{name}\n{files}{checked}\n\n{cost_table(beside.costs())}\n\nLoad it:\n{how}"


def _student_target(out: str | None, to: str) -> Path:
    """Return the path to write a student to; BadInput where it does not fit the format."""
    suffix = {"torch": ".pt", "int8": ".int8.onnx", "timm": ""}.get(to, f".{to}")
    target = _target(out or f"student{suffix}", folder=to == "timm")
    if to in ("pt2", "safetensors") and target.suffix != suffix:  # torch requires .pt2
        target = target.with_name(f"{target.name}{suffix}")
    if target.suffix == ".json":
        raise BadInput(f"The card goes to {target}: give --out the name of a weights file.")
    if target.suffix == ".safetensors" and to != "safetensors":
        raise BadInput(f"--to {to} writes no {target.name}: give --out another suffix.")
    return target


def _target(out: str, *, folder: bool = False) -> Path:
    """Return the path to write to; BadInput for / and for a folder in place of a file."""
    target = user_path(out).resolve()
    if not target.name or (target.is_dir() and not folder):
        new = f"give --out the name of a {'new folder' if folder else 'file'}"
        raise BadInput(
            f"The export cannot be written to {target}, which is a folder: {new}."
        )
    return target


def _how_graph(to: str, card: dict[str, Any], target: Path, *, bare: bool) -> str:
    """Lines of Python that run an exported graph, with the shape of its images."""
    how, side = _RUNS[to].format(path=str(target)), card["input"]["size"]
    if bare or card["input"].get("crop_mode") == "border":
        how = how.replace("of any size", f"of {side} by {side} pixels, cropped before")
    return how


def export_facts(run: RunFolder, student: Path, licence: str | None) -> dict[str, Any]:
    """Collect facts for readers of the exported student; no paths of this machine.

    Args:
        run: the run that trained it.
        student: its .safetensors file.
        licence: of its weights, as a model hub names it; None is that of the published weights it
            started from, or "unknown".
    """
    begun = started(run)
    folder = student.parent
    report = MemberResult.read(folder) or MemberResult.read(folder.parent)
    teacher = top1 = None
    if report is not None:
        top1 = (report.best if student.stem == "best" else report.last).top1
        if report.teacher_top1 is not None:
            named = teacher_name(begun.spec.get("teacher"))
            teacher = f"{named}, {report.teacher_top1:.2f} % of the same images"
    return {
        "kdlab_version": begun.versions.get("kdlab", ""),
        "run": run.run_id,
        "member": folder.relative_to(run.path / "members").as_posix(),
        "dataset": begun.dataset.name,
        "licence": licence or _licence(begun.spec.get("student")),
        "test_top1": top1,
        "test_images": begun.dataset.test,
        "teacher": teacher,
    }


def _licence(student: Any) -> str:
    """Return the licence of the published weights that a network started from."""
    block = student if isinstance(student, dict) else {}
    kind, _, variant = str(block.get("type")).partition("/")
    if not block.get("pretrained") or kind != "timm":
        return "unknown"
    import timm

    return str(getattr(timm.get_pretrained_cfg(variant), "license", None) or "unknown")


def _make_readable(*written: Path) -> None:
    """Let others read exported files; all other files of kdlab are private to the user."""
    for path in written:
        path.chmod(0o755 if path.is_dir() else 0o644)


def export_global(run_id: str, *, out: str | None, member: str | None) -> str:
    """Write the global model of local models: averaged weights, or a folder of networks.

    Raises:
        NotFoundError: no such run or member, or it has no global model.
    """
    run = folders.find(run_id)
    folder = member_folder(run, member)
    name = folder.relative_to(run.path / "members").as_posix()
    averaged, ensemble = folder / "global.safetensors", folder / "ensemble.yaml"
    if averaged.is_file():
        card, target = read_card(averaged), _target(out or averaged.name)
        if target.suffix != ".safetensors":
            target = target.with_name(f"{target.name}.safetensors")
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".safetensors", ".json"):
            shutil.copyfile(averaged.with_suffix(suffix), target.with_suffix(suffix))
        return f"{name}\n{target}\n\nLoad it:\n{_how(card, target)}"
    if not ensemble.is_file():
        raise NotFoundError(
            f"{name} of run {run.run_id} has no global model; only trainings of local models "
            "have one. Omit --global to export its student."
        )
    target = _target(out or "ensemble", folder=True)
    target.mkdir(parents=True, exist_ok=True)
    networks = sorted((folder / "ensemble").iterdir())
    for path in networks:
        shutil.copyfile(path, target / path.name)
    card = yaml.safe_load(ensemble.read_text())
    for network in card["teacher"]:
        network["model"]["weights"] = str(target / Path(network["model"]["weights"]).name)
    (target / ensemble.name).write_text(yaml.safe_dump(card, sort_keys=False))
    return (
        f"{name}\n{target} ({len(card['teacher'])} networks)\n\nIts output is the mean of "
        f"their probabilities. As the teacher of an experiment: the `teacher:` of\n"
        f"    {target / ensemble.name}\nOne network:\n"
        f"{_exported(card['teacher'][0]['model']['weights'])}"
    )


def _exported(path: str) -> str:
    return (
        "    from kdlab.models.exported import load_exported\n\n"
        f"    model = load_exported({path!r})"
    )


def _how(card: dict[str, Any], target: Path) -> str:
    """Lines of Python that load the file, with their imports."""
    kind, _, variant = str(card["model"]["type"]).partition("/")
    classes, channels = card["num_classes"], card["in_chans"]
    load = ("from safetensors.torch import load_file", f"load_file({str(target)!r})")
    if target.suffix != ".safetensors":
        load = ("import torch", f"torch.load({str(target)!r}, weights_only=True)")
    if kind == "timm":
        options = dict(card["model"].get("options") or {})
        options = {"num_classes": classes, "in_chans": channels} | options
        words = ", ".join(f"{name}={value!r}" for name, value in options.items())
        make = f"timm.create_model({variant!r}, {words})"
        lines = ["import timm", load[0], "", f"model = {make}"]
    elif kind == "torchvision" and channels == 3:
        make = f"torchvision.models.get_model({variant!r}, num_classes={classes})"
        lines = ["import torchvision", load[0], "", f"model = {make}"]
    elif any(isinstance(value, dict) for value in card["model"].values()):
        return _exported(str(target))  # a network of networks, built from its card
    else:  # a network of kdlab or of the user, not of timm or torchvision
        spec = construct(ModelSpec, from_dict(card["model"], target.name))
        name, module = type(spec).__name__, type(spec).__module__
        lines = [f"from {module} import {name}", load[0], ""]
        lines += [f"model = {spec}.architecture({classes}, {channels})"]
    lines.append(f"model.load_state_dict({load[1]})")
    return "\n".join(f"    {line}".rstrip() for line in lines)
