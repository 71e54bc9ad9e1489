"""Engines of other libraries: ONNX Runtime and OpenVINO, where they are installed."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kdlab.models.engines.engine import Asked, Engine, Precision
from kdlab.models.engines.in_torch import folded, in_hardware


def engines() -> Iterator[Engine]:
    """Those that are installed: kdlab[onnx], kdlab[openvino]."""
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
    if find_spec("onnxruntime") is not None and find_spec("onnxscript") is not None:
        yield Engine("onnxruntime", "fp32", _onnxruntime, slow_to_prepare=True)


def _openvino(precision: Precision, model: nn.Module, views: Tensor, threads: int) -> Asked:
    os.environ.setdefault("OPENVINO_TELEMETRY_DISABLE", "1")
    import openvino

    shape = [-1, *views.shape[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of the tracer that OpenVINO uses
        network = openvino.convert_model(
            folded(model, views), example_input=views.float(), input=shape
        )
    hints = {
        "INFERENCE_PRECISION_HINT": "f32" if precision == "fp32" else precision,
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",  # one request at a time, by all threads
    }
    compiled = openvino.compile_model(network, "CPU", hints)
    request = compiled.create_infer_request()

    def ask(given: Tensor) -> Tensor:
        answer = request.infer([given.float().numpy()])
        return torch.from_numpy(answer[compiled.output(0)].copy())

    return ask


def _onnxruntime(model: nn.Module, views: Tensor, threads: int) -> Asked:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        batch = torch.export.Dim("batch", min=1)
        torch.onnx.export(
            folded(model, views),
            (views.float(),),
            path,
            input_names=["views"],
            output_names=["scores"],
            dynamic_shapes=({0: batch},),
            dynamo=True,
            verbose=False,
        )
        session: Any = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def ask(given: Tensor) -> Tensor:
        (scores,) = session.run(None, {"views": given.float().numpy()})
        return torch.from_numpy(scores)

    return ask
