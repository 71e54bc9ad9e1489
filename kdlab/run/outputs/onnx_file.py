"""A self-contained ONNX file: crop and resize before the network, its card inside."""

import io
import json
from collections.abc import Callable, Mapping
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from kdlab.codec import from_builtins, from_json
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.encoded.decode import Pixels
from kdlab.data.encoded.holders import read_file
from kdlab.data.shown import InputSpec
from kdlab.errors import BadInput, ModelError, WeightsError, short
from kdlab.models.model import StudentCard

Runs = Callable[[Pixels], NDArray[np.float32]]
_MOST_BYTES = 2**31  # of a file: the limit of ONNX itself
_SHOWN = 300  # characters of other libraries' error messages
_TIES = 1e-4  # of the pixels: rounded twice, one in a million may be two apart
# As InputSpec does it; of a longer side only a middle of 16 times the shorter one counts.
_LONG = (
    "sixteen = Constant<value = double[1] {16.0}>() most = Mul(short, sixteen) "
    "part = Min(sides, most) gap = Sub(sides, part) mid = Mul(gap, half) low = Round(mid) "
    "high = Add(low, part) from = Cast<to=7>(low) to = Cast<to=7>(high) "
    "cut = Slice(pixels, from, to, axes) many = Mul(part, whole) share = Div(many, short) "
    "new = Floor(share) "
)
_SQUASH = "new = Concat<axis=0>(whole, whole) cut = Identity(pixels) "
_FRONT = """front (uint8[N, {c}, H, W] pixels, bool is_shown) =>
    (uint8[N, {c}, {s}, {s}] shown) <bool is_shown = {{0}}> {{
    size = Constant<value = double[1] {{{s}.0}}>() whole = Constant<value = double[1] {{{w}.0}}>()
    half = Constant<value = double[1] {{0.5}}>() axes = Constant<value = int64[2] {{2, 3}}>()
    ends = Shape<start=2>(pixels) sides = Cast<to=11>(ends)
    shown = If(is_shown) <then_branch = t () => (uint8[N, {c}, {s}, {s}] given)
    {{ given = Identity(pixels) }}, else_branch = e () => (uint8[N, {c}, {s}, {s}] made) {{
    short = ReduceMin<keepdims=1>(sides) {rule} count = Shape<end=2>(pixels)
    new_sides = Cast<to=7>(new) all = Concat<axis=0>(count, new_sides)
    large = Resize<mode="{mode}", antialias=1, cubic_coeff_a=-0.5, exclude_outside=1>(cut, , , all)
    rest = Sub(new, size) left = Mul(rest, half) off = Round(left) begin = Cast<to=7>(off)
    n = Cast<to=7>(size) end = Add(begin, n) made = Slice(large, begin, end, axes) }}> }}"""


def front(how: Mapping[str, Any]) -> Any:
    """Return an ONNX graph from (N, C, H, W) uint8 to (N, C, size, size), as an `InputSpec` does.

    A second, optional input is true for squares that are already prepared.
    None: ONNX has no operators for it.

    Args:
        how: fields of the `InputSpec`.
    """
    from onnx import parser

    rule = {"center": _LONG, "squash": _SQUASH}.get(how.get("crop_mode", ""))
    if rule is None:
        return None
    mode = {"bilinear": "linear", "bicubic": "cubic"}[how["interpolation"]]
    c, s, w = how["channels"], how["size"], floor(how["size"] / how["crop_pct"])
    return parser.parse_graph(_FRONT.format(c=c, s=s, w=w, rule=rule, mode=mode))


def complete(path: Path, card: Mapping[str, Any], images: Pixels, *, bare: bool) -> None:
    """Add the card to an ONNX file, and crop and resize in front of the network.

    Args:
        path: of the file, whose input is squares.
        card: of the student, with all other facts for readers.
        images: (N, C, size, size), to check crop and resize with.
        bare: leave out crop and resize.

    Raises:
        ModelError: ONNX would prepare an image differently from kdlab.
    """
    import onnx

    model, how = onnx.load(path), card["input"]
    if not bare and (before := front(how)) is not None:
        graph = model.graph
        version = model.opset_import[0]
        preprocessing = onnx.helper.make_model(
            before, opset_imports=[version], ir_version=model.ir_version
        )
        _check_shown(_session(preprocessing.SerializeToString()), how, images)
        for node in graph.node:
            node.input[:] = ["shown" if name == "pixels" else name for name in node.input]
        nodes = [*before.node, *graph.node]
        del graph.node[:], graph.input[:]
        graph.node.extend(nodes)
        graph.input.extend(before.input)
        graph.initializer.extend(before.initializer)
    onnx.helper.set_model_props(model, {k: json.dumps(v) for k, v in card.items()})
    onnx.save(model, path)


def _check_shown(session: Any, how: Mapping[str, Any], images: Pixels) -> None:
    """Check crop and resize on six images joined into one of another shape and size."""
    spec = construct(InputSpec, from_dict(dict(how), "input"))
    six = np.resize(images, (2, 3, *images.shape[1:])).transpose(2, 0, 3, 1, 4)
    joined = six.reshape(images.shape[1], 2 * spec.size, 3 * spec.size)[:, 1:]
    file = io.BytesIO()
    Image.fromarray(joined.transpose(1, 2, 0).squeeze()).save(file, "PNG")
    (shown,) = session.run(None, {"pixels": joined[None]})
    apart = np.abs(shown[0].astype(int) - spec.pixels(file.getvalue()))
    if (apart > 1).mean() > _TIES:
        raise ModelError(
            f"ONNX prepares an image differently from kdlab: pixels differ by up to "
            f"{apart.max()}. --bare writes the network without crop and resize."
        )


def onnx_session(path: Path) -> Runs:
    """Load the ONNX file of a student, to run on one thread with prepared squares."""
    return _runs(_session(read_file(path, _MOST_BYTES)))


def _session(raw: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    # From bytes: external files that the model may name are not read.
    return onnxruntime.InferenceSession(raw, options, ["CPUExecutionProvider"])


def _runs(session: Any) -> Runs:
    is_shown = {arg.name: np.array(True) for arg in session.get_overridable_initializers()}

    def run(pixels: Pixels) -> NDArray[np.float32]:
        (scores,) = session.run(["scores"], {"pixels": pixels, **is_shown})
        result: NDArray[np.float32] = scores
        return result

    return run


class OnnxStudent(nn.Module):
    """An ONNX file of `kdlab export`, called like the network itself.

    Raises:
        BadInput: onnxruntime is not installed.
        WeightsError: the file is no such export, with the reason.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            session = _session(read_file(path, _MOST_BYTES))
            props = session.get_modelmeta().custom_metadata_map
            self.card: dict[str, Any] = {
                k: from_json(object, v.encode()) for k, v in props.items()
            }
            self._classes = from_builtins(StudentCard, self.card).num_classes
        except ImportError as error:
            raise BadInput(
                f"{path.name} needs {error.name}, which is not installed: pip install "
                "'kdlab[onnx]'"
            ) from error
        except Exception as error:  # onnxruntime has a class for each of a dozen reasons
            raise WeightsError(
                f"{path} is no ONNX file with a card inside, as kdlab export writes it: "
                f"{short(str(error), _SHOWN)}"
            ) from error
        self._run = _runs(session)

    def forward(self, views: Tensor) -> Tensor:
        """(N, C, size, size) uint8 -> (N, classes)."""
        try:
            scores = torch.from_numpy(self._run(views.numpy()))
            return scores.view(len(views), self._classes)
        except Exception as error:  # of onnxruntime, or for another shape
            raise WeightsError(
                f"This ONNX file does not answer as its card says: {short(str(error), _SHOWN)}"
            ) from error
