"""Gain of a teacher by its engine: labels/s over those of eager PyTorch, on one core.

Then bytes of a label on the wire, what whole served runs gain (bench/served_teacher), and how
teachers follow the demand (bench/elasticity).

Engines take turns on the same views. One whose answers differ too much from the network's own is
refused (models/engines) and does not count. `clothes` is trained and sees photos, the others are
untrained and see noise. `torch_only` leaves out kdlab[onnx] and kdlab[openvino].
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from benchmarks import elasticity, served_teacher
from benchmarks.harness import of_parts, quiet
from kdlab.cluster.transport.frames import size_of
from kdlab.cluster.transport.messages import Replies, RequestTimes, encode
from kdlab.config.check import construct
from kdlab.config.load import compose_card, from_dict
from kdlab.data.images import DataSpec
from kdlab.events.event import discard_event
from kdlab.models.engines import ChosenEngine, Engine, Trial, available_engines, choose
from kdlab.models.model import ModelSpec, Normalised
from kdlab.report.figures import EmitLine, Figure, Report, figure
from kdlab.train.teacher import TeacherSpec, prepare

_SECONDS = 60.0  # for each network
_LABELS = 64
_PHOTOS = 1000  # as many as an engine is judged by
_REPLIES: Mapping[Replies, int] = {"full": 0, "half": 0, "top_k": 10, "sampled": 12}
_OTHERS = ("onnxruntime", "openvino")
# Network, side in pixels, views at once.
_Case = tuple[Mapping[str, object], int, int]
NETWORKS: Mapping[str, _Case] = {
    "resnet50_224": ({"type": "timm/resnet50"}, 224, 8),
    "resnet18_224": ({"type": "timm/resnet18"}, 224, 16),
    "mobilenetv3_224": ({"type": "timm/mobilenetv3_small_100"}, 224, 16),
    "resnet20_32": ({"type": "models/cifar_resnet", "depth": 20}, 32, 64),
}


def measure(repeats: int = 1, only: Collection[str] = (), say: EmitLine = quiet) -> Report:
    """`labels_per_s_over_eager` of each network, then bytes and whole runs; `repeats` times."""
    torch.set_num_threads(1)
    parts = {n: partial(_gains, n, repeats, say) for n in ("clothes", *NETWORKS)}
    parts["bytes"] = partial(_bytes_per_label, say)
    parts["end_to_end"] = partial(served_teacher.gains, repeats, say)
    parts["shared"] = partial(served_teacher.shared, repeats, say)
    parts["elastic"] = partial(elasticity.elastic, repeats, say)
    return of_parts("teacher", parts, only)


def _gains(name: str, repeats: int, say: EmitLine) -> list[Figure]:
    model, views = _clothes() if name == "clothes" else _untrained(name)
    # All but those that take a minute or more to be ready; int8 takes its ranges of every third.
    available = available_engines("cpu", lambda: views[::3] if name == "clothes" else views)
    engines = [engine for engine in available if engine.name != "compiled"]
    return by_engine(name, model, views, engines, repeats, say, _SECONDS, torch_only=True)


def by_engine(
    name: str,
    model: Normalised,
    views: torch.Tensor,
    engines: Sequence[Engine],
    repeats: int,
    say: EmitLine,
    seconds: float,
    *,
    torch_only: bool = False,
) -> list[Figure]:
    """`labels_per_s_over_eager`, also of torch's engines only; `times_eager` of each engine."""
    choices = []
    for _ in range(repeats):
        choices.append(choose(model, views, engines, threads=1, seconds=seconds))
        say(f"{name}: {choices[-1]}")
    named = "labels_per_s_over_eager"
    figures = [figure(f"{named}/{name}", list(map(gain, choices)), "ratio")]
    if torch_only:
        gains = [gain(c, lambda trial: trial.engine not in _OTHERS) for c in choices]
        figures.append(figure(f"{named}/torch_only/{name}", gains, "ratio"))
    for label in (trial.label for trial in choices[0].trials):
        times = [gain(choice, partial(_is, label)) for choice in choices]
        if all(times):  # one that was refused, or not tried, has no rate
            named = f"times_eager/{name}/{label.replace(' ', '_')}"
            figures.append(figure(named, times, "ratio"))
    return figures


def _clothes() -> tuple[Normalised, torch.Tensor]:
    """The teacher that comes with kdlab, and views of the photos that it was trained on."""
    data = construct(DataSpec, compose_card("data/clothes")).load()
    spec = construct(TeacherSpec, compose_card("teachers/clothes_resnet"))
    model = prepare(spec, discard_event).build(len(data.classes), data.shape[0]).eval()
    return model, torch.from_numpy(data.views(data.train[:_PHOTOS], 0))


def _untrained(name: str) -> tuple[Normalised, torch.Tensor]:
    block, side, count = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = construct(ModelSpec, from_dict(block, name)).build(10, 3)
        views = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
        served_teacher.see(model, views)
    return model, views


def _bytes_per_label(say: EmitLine) -> list[Figure]:
    """Bytes per label of an answer of 64 labels on the wire, with all that is around them."""
    chance = np.random.default_rng(0)
    figures = []
    for classes in (100, 1000):
        logits = chance.normal(0, 3, (_LABELS, classes)).astype(np.float32)
        for replies, k in _REPLIES.items():
            answer = RequestTimes().with_times(encode(logits, replies, k), "eager fp32")
            each = size_of({"number": 10**6}, answer) / _LABELS
            name = f"{replies}{k or ''}".replace("top_k", "top")
            label = f"bytes_per_label/{name}" + ("" if classes == 100 else f"/{classes}")
            figures.append(figure(label, each, "bytes"))
            say(f"{classes} classes, {name}: {each:.1f} bytes per label")
    return figures


def _is(label: str, trial: Trial) -> bool:
    return trial.label == label


def gain(
    choice: ChosenEngine, among: Callable[[Trial], bool] = lambda trial: True
) -> float:
    """The best rate of these engines over eager's; those that were refused have none."""
    rates = (trial.rate for trial in choice.trials if among(trial) and not trial.refused)
    return max(rates, default=0.0) / choice.trials[0].rate
