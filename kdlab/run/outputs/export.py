"""`kdlab export`: a run's student alone, loadable without kdlab; or its global model."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import NotFoundError
from kdlab.experiment import folder as folders
from kdlab.models.model import ModelSpec, read_card
from kdlab.report.costs import cost_table
from kdlab.run.outputs.student_files import member_folder, student_file

_RUNS = {
    "pt2": """\
    import torch

    model = torch.export.load({path!r}).module()
    scores = model(pixels)  # uint8 (N, C, H, W) to (N, classes); it normalises itself""",
    "onnx": """\
    import onnxruntime

    session = onnxruntime.InferenceSession({path!r})
    (scores,) = session.run(["scores"], {{"pixels": pixels}})  # uint8 (N, C, H, W)""",
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
    licence: str = "other",
) -> str:
    """Write the student and its JSON card; says how to load it, and what it costs.

    Arguments are those of `kdlab export`; without a member the one that the result describes.

    Raises:
        BadInput, ModelError: as kdlab/run/outputs/export_formats.py does.
        NotFoundError: no such run or member, or it has no student yet.
    """
    run = folders.find(run_id)
    source = student_file(run, member, best=best)
    folder = source.parent
    suffix = {"torch": ".pt", "int8": ".int8.onnx", "timm": ""}.get(to, f".{to}")
    target = Path(out or f"student{suffix}").resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if to == "timm":
        from kdlab.run.outputs.timm_folder import write_timm_folder  # imports torch

        write_timm_folder(source, target, licence)
        name = folder.relative_to(run.path / "members").as_posix().removesuffix("/whole")
        return f"{name}\n{target}\n\nLoad it:\n{_FOLDER.format(path=str(target))}"
    from kdlab.run.outputs.export_formats import Beside, ship  # imports torch

    card, beside, checked = read_card(source), Beside(run, source), ""
    if to == "safetensors":
        shutil.copyfile(source, target)
    elif to == "int8":
        from kdlab.run.outputs.quantised import quantise

        checked = f"\n\n{quantise(beside.student, beside.data(), target)}"
    elif to in ("pt2", "onnx"):
        checked = f"\n{ship(beside.student, beside.images(), to, target)}"
    else:
        import torch
        from safetensors.torch import load_file

        torch.save(load_file(source), target)
    shutil.copyfile(source.with_suffix(".json"), target.with_suffix(".json"))
    files = f"{target}\n{target.with_suffix('.json')}"
    name = folder.relative_to(run.path / "members").as_posix().removesuffix("/whole")
    how = _RUNS[to].format(path=str(target)) if to in _RUNS else _how(card, target)
    costs = cost_table(beside.costs())
    return f"{name}\n{files}{checked}\n\n{costs}\n\nLoad it:\n{how}"


def export_global(run_id: str, *, out: str | None, member: str | None) -> str:
    """Write the global model of local ones: averaged weights, or a folder of networks.

    Raises:
        NotFoundError: no such run or member, or it has no global model.
    """
    run = folders.find(run_id)
    folder = member_folder(run, member)
    name = folder.relative_to(run.path / "members").as_posix()
    averaged, ensemble = folder / "global.safetensors", folder / "ensemble.yaml"
    if averaged.is_file():
        card, target = read_card(averaged), Path(out or averaged.name).resolve()
        if target.suffix != ".safetensors":
            target = target.with_name(f"{target.name}.safetensors")
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".safetensors", ".json"):
            shutil.copyfile(averaged.with_suffix(suffix), target.with_suffix(suffix))
        return f"{name}\n{target}\n\nLoad it:\n{_how(card, target)}"
    if not ensemble.is_file():
        raise NotFoundError(
            f"{name} of run {run.run_id} has no global model; only runs of methods/ensemble "
            "have one. Leave --global away for its student."
        )
    target = Path(out or "ensemble").resolve()
    target.mkdir(parents=True, exist_ok=True)
    networks = sorted((folder / "ensemble").iterdir())
    for path in networks:
        shutil.copyfile(path, target / path.name)
    card = yaml.safe_load(ensemble.read_text())
    for one in card["teacher"]:
        one["model"]["weights"] = str(target / Path(one["model"]["weights"]).name)
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
    """Lines of Python that load the file, whole with their imports."""
    kind, _, variant = str(card["model"]["type"]).partition("/")
    classes, channels = card["num_classes"], card["in_chans"]
    load = ("from safetensors.torch import load_file", f"load_file({str(target)!r})")
    if target.suffix != ".safetensors":
        load = ("import torch", f"torch.load({str(target)!r}, weights_only=True)")
    if kind == "timm":
        make = f"timm.create_model({variant!r}, num_classes={classes}, in_chans={channels})"
        lines = ["import timm", load[0], "", f"model = {make}"]
    elif kind == "torchvision" and channels == 3:
        make = f"torchvision.models.get_model({variant!r}, num_classes={classes})"
        lines = ["import torchvision", load[0], "", f"model = {make}"]
    elif any(isinstance(value, dict) for value in card["model"].values()):
        return _exported(str(target))  # a network made of others, by what its card says
    else:  # a network of kdlab or of the user: neither timm nor torchvision has it
        spec = construct(ModelSpec, from_dict(card["model"], target.name))
        name, module = type(spec).__name__, type(spec).__module__
        lines = [f"from {module} import {name}", load[0], ""]
        lines += [f"model = {spec}.architecture({classes}, {channels})"]
    lines.append(f"model.load_state_dict({load[1]})")
    return "\n".join(f"    {line}".rstrip() for line in lines)
