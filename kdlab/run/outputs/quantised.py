"""The student in int8: ONNX whose layers compute with integers, compared with fp32.

Weights are rounded by channel, activations by ranges observed on some training images
(onnxruntime's static quantisation after training). Accuracy and speed stand beside those of fp32.

Weights have seven bits: two products of 255 and 127 do not fit into the 16 bits in which processors
without VNNI add them (onnxruntime#5849); of 255 and 64 they do, so that all processors agree.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdlab.data.encoded.decode import Pixels
from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.errors import BadInput
from kdlab.models.model import Normalised
from kdlab.report.table import text_table_left
from kdlab.run.outputs.export_formats import ship
from kdlab.run.outputs.onnx_file import Runs, complete, onnx_session

_SHOWN = 256  # training images from which ranges are taken
_AT_ONCE = 32  # images of a batch
_TESTED = 5_000  # images at most
_LOST = 1.0  # points of top-1: beyond this comes advice
_TURNS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FormMeasurement:
    """Size, accuracy and latency of one format of a student, on one core."""

    megabytes: float
    top1: float  # percent of the test images
    alone_ms: float  # one image
    batch_ms: float  # an image of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """A network measured in fp32 and in int8."""

    fp32: FormMeasurement
    int8: FormMeasurement
    images: int

    def __str__(self) -> str:
        rows = [
            [name, f"{f.megabytes:.2f}", f"{f.top1:.2f}", f"{f.alone_ms:.2f}",
             f"{f.batch_ms:.2f}"]
            for name, f in (("fp32", self.fp32), ("int8", self.int8))
        ]  # fmt: skip
        head = ["ONNX", "MB", "top-1 %", "ms, one image", f"ms, each of {_AT_ONCE}"]
        times = self.fp32.batch_ms / self.int8.batch_ms
        lost = self.fp32.top1 - self.int8.top1
        words = (
            f"int8 is {times:.1f} times as fast on one core and {lost:+.2f} points below fp32 "
            f"on {self.images:,} test images"
        )
        if lost > _LOST:
            words += (
                ". That is much: small networks and depthwise convolutions lose most. Train "
                "with train.quantise_after: 0.7 or a wider student, or ship fp32"
            )
        return f"{text_table_left(head, rows)}\n{words}"


def quantise(
    model: Normalised,
    data: ImageData,
    path: Path,
    card: Mapping[str, Any],
    *,
    bare: bool = False,
) -> Quantised:
    """Write the student in int8, and measure both int8 and fp32.

    Args:
        model: in eval mode on the CPU.
        data: the student's data set.
        path: of the .onnx file.
        card: see `complete`.
        bare: see `complete`.

    Raises:
        BadInput: onnxruntime is not installed.
        ModelError: ONNX in fp32 already disagrees with the model.
    """
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise BadInput(
            f"int8 needs {error.name}, which is not installed: pip install 'kdlab[onnx]'"
        ) from error
    test = _some(data, data.test, _TESTED)
    shown = _some(data, data.train, _SHOWN)
    images: Pixels = data.inputs[test]
    with TemporaryDirectory(dir=path.parent) as folder:
        exact, ready = Path(folder) / "fp32.onnx", Path(folder) / "ready.onnx"
        half = Path(folder) / "int8.onnx"
        ship(model, images[:_SHOWN], "onnx", exact)
        quantization.quant_pre_process(exact, ready, skip_symbolic_shape=True)
        quantization.quantize_static(
            ready,
            half,
            _reader(quantization.CalibrationDataReader, data.inputs[shown]),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            reduce_range=True,
        )
        complete(half, card, images, bare=bare)
        measured = _measured({"fp32": exact, "int8": half}, images, data.labels[test])
        half.replace(path)
    return Quantised(**measured, images=len(images))


def _some(data: ImageData, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most `count` rows, with each class in its share: folders are sorted by class."""
    return by_class(rows, data.labels, count, 0)[0]


def _reader(base: type[Any], images: Pixels) -> Any:
    """A reader of calibration images, as a subclass of onnxruntime's class."""

    class Calibration(base):
        def __init__(self) -> None:
            self.left = [images[k : k + _AT_ONCE] for k in range(0, len(images), _AT_ONCE)]

        def get_next(self) -> dict[str, Pixels] | None:
            return {"pixels": self.left.pop()} if self.left else None

    return Calibration()


def _measured(
    paths: dict[str, Path], images: Pixels, labels: NDArray[np.int64]
) -> dict[str, FormMeasurement]:
    """Measure formats in turns, so that a drift of the machine affects all alike."""
    sessions = {name: onnx_session(path) for name, path in paths.items()}
    single, batch = images[:1], images[:_AT_ONCE]
    taken: dict[str, tuple[list[float], list[float]]] = {n: ([], []) for n in paths}
    for _ in range(_TURNS):
        for name, run in sessions.items():
            for pixels, seconds in zip((single, batch), taken[name], strict=True):
                seconds.append(_seconds(run, pixels) / len(pixels))
    return {
        name: FormMeasurement(
            megabytes=paths[name].stat().st_size / 1e6,
            top1=100 * _top1(run, images, labels),
            alone_ms=1e3 * median(taken[name][0]),
            batch_ms=1e3 * median(taken[name][1]),
        )
        for name, run in sessions.items()
    }


def _seconds(run: Callable[[Pixels], object], images: Pixels) -> float:
    begin = time.thread_time()  # of its one thread: other work does not count
    run(images)
    return time.thread_time() - begin


def _top1(run: Runs, images: Pixels, labels: NDArray[np.int64]) -> float:
    parts: Sequence[NDArray[np.float32]] = [
        run(images[k : k + _AT_ONCE]) for k in range(0, len(images), _AT_ONCE)
    ]
    return float((np.concatenate(parts).argmax(1) == labels).mean())
