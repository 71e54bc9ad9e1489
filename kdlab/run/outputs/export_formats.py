"""The student as a checked graph that runs without kdlab: torch.export and ONNX.

Both take uint8 pixels (N, C, H, W) and return class scores (N, classes): normalisation is
inside. The written file is loaded again and must agree with the model on real test images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kdlab.data.encoded.decode import Pixels
from kdlab.data.images import ImageData
from kdlab.errors import BadInput, KdlabError, ModelError
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.spec import spec_of
from kdlab.models.cost import cost_of
from kdlab.models.exported import load_exported
from kdlab.models.model import Normalised
from kdlab.run.outputs.onnx_file import Runs, complete, onnx_session
from kdlab.run.outputs.student_files import started, was_taught
from kdlab.train.teacher import PreparedTeachers, prepared
from kdlab.train.teacher_classes import names_beside

_CHECKED = 256  # test images
_APART = 1e-3  # difference of scores, relative to the largest


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Agreement of an exported file with its student."""

    images: int
    apart: float  # largest difference of a score
    same_top1: float  # share of the images

    def __str__(self) -> str:
        return (
            f"checked on {self.images} test images: scores differ by {self.apart:.1e} at most, "
            f"top-1 is the same on {self.same_top1:.1%}"
        )


def ship(
    model: Normalised,
    images: Pixels,
    form: str,
    path: Path,
    card: Mapping[str, Any] | None = None,
    *,
    bare: bool = False,
) -> ExportResult:
    """Write a graph, load it again and compare it with the model.

    Args:
        model: in eval mode on the CPU.
        images: (N, C, H, W) uint8 of the test split.
        form: `pt2` is torch.export, `onnx` is ONNX.
        path: of the file.
        card: for ONNX, see `complete`; None writes the network only.
        bare: see `complete`.

    Raises:
        BadInput: ONNX was asked for and is not installed.
        ModelError: the written graph disagrees with the model.
    """
    write = {"pt2": _torch_export, "onnx": _onnx}[form]
    half = path.with_name(f"half-{path.name}")  # exporters require the suffix
    try:
        loaded = write(model, images, half)
        if card is not None and form == "onnx":
            complete(half, card, images, bare=bare)
            loaded = onnx_session(half)
        shipped = _checked(model, images, loaded, path)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return shipped


def _checked(model: Normalised, images: Pixels, loaded: Runs, path: Path) -> ExportResult:
    with torch.inference_mode():
        ours = model(torch.from_numpy(images)).numpy()
    theirs = np.concatenate([loaded(images[:1]), loaded(images[1:])])  # any batch size
    apart = float(np.abs(ours - theirs).max())
    same = float((ours.argmax(1) == theirs.argmax(1)).mean())
    if not apart <= _APART * max(1.0, float(np.abs(ours).max())):  # NaN is no agreement
        raise ModelError(
            f"{path.name} disagrees with the student: on {len(images)} test images the "
            f"scores differ by up to {apart:.3g}, top-1 is the same on {same:.1%}. Do not use "
            "it. The usual cause is an operation that the exporter translates differently; "
            "--to safetensors keeps the weights unchanged."
        )
    return ExportResult(len(images), apart, same)


def _torch_export(model: Normalised, images: Pixels, path: Path) -> Runs:
    batch = torch.export.Dim("batch", min=1, max=65_536)
    example = (torch.from_numpy(images[:2]),)
    program = torch.export.export(model, example, dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    again = torch.export.load(path).module()

    @torch.inference_mode()
    def run(pixels: Pixels) -> NDArray[np.float32]:
        scores: NDArray[np.float32] = again(torch.from_numpy(pixels)).numpy()
        return scores

    return run


def _onnx(model: Normalised, images: Pixels, path: Path) -> Runs:
    try:
        import onnxruntime  # noqa: F401  # runs it
        import onnxscript  # noqa: F401  # torch writes ONNX with it
    except ImportError as error:
        raise BadInput(
            f"ONNX needs {error.name}, which is not installed: pip install 'kdlab[onnx]'"
        ) from error
    torch.onnx.export(
        model,
        (torch.from_numpy(images[:2]),),
        path,
        input_names=["pixels"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    return onnx_session(path)


def costs_beside(
    student: Normalised,
    teachers: PreparedTeachers | None,
    classes: int,
    shape: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Return fields of `Cost` for images of shape (C, H, W), the teacher's first, if any."""
    models: dict[str, nn.Module] = {"student": student}
    if teachers is not None:
        models = {"teacher": teachers.build(classes, shape[0])} | models
    return {name: asdict(cost_of(model, shape)) for name, model in models.items()}


class StudentWithTeacher:
    """The student of a run, from a .safetensors file with its card, and its teacher."""

    def __init__(self, run: RunFolder, student: Path) -> None:
        self.run, self.student = run, load_exported(student)

    def data(self) -> ImageData:
        """Load its training data; SpecError or DataError where this machine lacks it."""
        return spec_of(self.run).data.load(lambda line: None)

    def images(self) -> Pixels:
        """Return the first images of the test split, (N, C, H, W)."""
        data = self.data()
        pixels: Pixels = data.inputs[data.test[:_CHECKED]]
        return pixels

    def costs(self) -> dict[str, dict[str, float]]:
        """Return costs of the student, and of the teacher if this machine has its weights."""
        data = started(self.run).dataset
        teachers = self._teachers(data.classes) if was_taught(self.run) else None
        return costs_beside(self.student, teachers, data.classes, data.shape)

    def _teachers(self, classes: int) -> PreparedTeachers | None:
        """The prepared teachers; None where one is missing or was cut to these classes."""
        try:
            every = [prepared(spec) for spec in spec_of(self.run).teachers()]
        except KdlabError:  # a component of a notebook cell, or of another version
            return None
        usable = tuple(
            one
            for one in every
            if one is not None
            and one.spec.classes is None
            and len(names_beside(one.weights)) in (0, classes)
        )
        return PreparedTeachers(usable) if usable and len(usable) == len(every) else None
