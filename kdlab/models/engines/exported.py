"""Engines of installed libraries: ONNX Runtime and OpenVINO."""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kdlab.config.home import home
from kdlab.config.kept import load_or_create
from kdlab.config.seal import damage, seal
from kdlab.models.engines.engine import Engine, Precision, Predict
from kdlab.models.engines.in_torch import fold_batch_norms, in_hardware


def engines(shown: Callable[[], Tensor] | None = None) -> Iterator[Engine]:
    """Yield engines of what is installed: kdlab[onnx], kdlab[openvino], kdlab[int8] with views."""
    if find_spec("openvino") is not None:
        precisions: tuple[Precision, ...] = ("fp32", "bf16")
        for precision in precisions:
            if precision == "fp32" or in_hardware(precision, "cpu"):
                yield Engine(
                    "openvino",
                    precision,
                    partial(_openvino, precision),
                    slow_to_prepare=True,
                )
        if shown is not None and find_spec("nncf") is not None:
            prepare = partial(_openvino, "int8", shown=shown)
            yield Engine("openvino", "int8", prepare, slow_to_prepare=True)
    if find_spec("onnxruntime") is not None and find_spec("onnxscript") is not None:
        yield Engine("onnxruntime", "fp32", _onnxruntime, slow_to_prepare=True)


def _openvino(
    precision: Precision,
    model: nn.Module,
    views: Tensor,
    threads: int,
    shown: Callable[[], Tensor] | None = None,
) -> Predict:
    os.environ.setdefault("OPENVINO_TELEMETRY_DISABLE", "1")
    import openvino

    network = _convert(model, views) if shown is None else _quantise(model, views, shown())
    if precision == "int8":  # precision of layers that are not in int8
        precision = "bf16" if in_hardware("bf16", "cpu") else "fp32"
    hints = {
        "INFERENCE_PRECISION_HINT": "f32" if precision == "fp32" else precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",  # one request at a time, by all threads
    }
    compiled = openvino.compile_model(network, "CPU", hints)
    request = compiled.create_infer_request()

    def ask(images: Tensor) -> Tensor:
        answer = request.infer([images.float().numpy()])
        return torch.from_numpy(answer[compiled.output(0)].copy())

    return ask


def _convert(model: nn.Module, views: Tensor) -> Any:
    import openvino

    shape = [-1, *views.shape[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the tracer that OpenVINO uses
        return openvino.convert_model(
            fold_batch_norms(model, views), example_input=views.float(), input=shape
        )


def _quantise(model: nn.Module, views: Tensor, shown: Tensor) -> Any:
    """Quantise a network after training with nncf, and keep it for the next teacher.

    The key is of weights, layers, the views that calibrate ranges, and versions of libraries.
    """
    import nncf
    import openvino

    digest = hashlib.sha256(repr((model, nncf.__version__, openvino.__version__)).encode())
    for values in (*model.state_dict().values(), shown):
        digest.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    folder = home() / "engines" / f"{digest.hexdigest()[:16]}.int8"

    def find() -> Any:
        if damage(folder, hashes=True) is not None:
            return None
        return openvino.Core().read_model(folder / "network.xml")

    def make() -> Any:
        dataset = nncf.Dataset(list(shown.split(1)), lambda view: view.float().numpy())
        with _without_bars():
            network = nncf.quantize(_convert(model, views), dataset, subset_size=len(shown))
        folder.mkdir(parents=True, exist_ok=True)
        openvino.save_model(network, folder / "network.xml", compress_to_fp16=False)
        seal(folder, ("network.xml", "network.bin"), {})
        return network

    return load_or_create(folder, find, make)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Disable nncf's progress bars: it has no option, and stdout is shared by all threads."""
    from nncf.common.logging import track_progress

    bars = track_progress.Progress
    track_progress.Progress = lambda *columns, **rest: bars(
        *columns, **rest | {"disable": True}
    )
    try:
        yield
    finally:
        track_progress.Progress = bars


def _onnxruntime(model: nn.Module, views: Tensor, threads: int) -> Predict:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        batch = torch.export.Dim("batch", min=1)
        torch.onnx.export(
            fold_batch_norms(model, views),
            (views.float(),),
            path,
            input_names=["views"],
            output_names=["scores"],
            dynamic_shapes=({0: batch},),
            dynamo=True,
            verbose=False,
        )
        session: Any = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def ask(images: Tensor) -> Tensor:
        (scores,) = session.run(None, {"views": images.float().numpy()})
        return torch.from_numpy(scores)

    return ask
