"""Speed of students and teachers on a GPU: precisions, engines, copies beside the work.

Variants take turns on the same views; each time ends when the device is done. `make gpu` runs it
after the tests that need a GPU.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from benchmarks.harness import in_turns, of_parts, quiet, timed
from benchmarks.teacher import NETWORKS, by_engine
from kdlab.cluster.deployment import Deployment
from kdlab.cluster.teachers.inference import Inference, Request, UnderWay
from kdlab.cluster.teachers.probe import DataIdentity
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import BadInput
from kdlab.models.device_feed import DeviceFeed
from kdlab.models.engines import Engine, available_engines
from kdlab.models.model import ModelSpec, Normalised
from kdlab.models.timm import TimmModel
from kdlab.report.figures import EmitLine, Figure, Report, figure, over
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep

_SIDE, _BATCH = 224, 128
_STEPS, _TURNS = 20, 5  # of a slice, and slices of each variant
_LABELS = 256  # at once, by a teacher's engine
_COMPILED = ("resnet50_224", "mobilenetv3_224")  # half a minute each, in bf16
_ENGINES_S = 45.0  # for each network
_TAUGHT = 80  # steps of a network whose answers have to be sure
_UNDER_WAY = 2  # batches, in a teacher
_DEVICE = "cuda"
# Networks whose images/s timm publishes, how they are taught here, and views at once.
PUBLISHED: Mapping[str, tuple[str, float, int]] = {
    "resnet50": ("timm/resnet50", 1e-3, 256),
    "vit_base": ("timm/vit_base_patch16_224", 1e-4, 256),
    "vit_large": ("timm/vit_large_patch16_224", 1e-4, 256),
}
_QUICK: Mapping[str, object] = {"precision": "bf16", "channels_last": True}
_RECIPES: Mapping[str, Mapping[str, object]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16_channels_last": _QUICK,
    "bf16_channels_last_compiled": {**_QUICK, "compile": True},
}


def measure(repeats: int = 1, only: Collection[str] = (), say: EmitLine = quiet) -> Report:
    """`student_over_fp32`, `labels_per_s_over_eager`, `fed_over_resident`, `teacher_over_engine`.

    And `labels_per_s`, bare and served, of networks whose rate timm publishes.

    Raises:
        BadInput: PyTorch sees no GPU.
    """
    if not torch.cuda.is_available():
        raise BadInput(
            "bench gpu needs a GPU, and PyTorch sees none on this machine. "
            "docs/cluster.md shows what was measured where there is one."
        )
    say(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    parts = {
        "students": partial(_students, repeats, say),
        "feed": partial(_feed, repeats, say),
        "teachers": partial(_teachers, repeats, say),
        "served": partial(_served, repeats, say),
        "labels": partial(_labels_per_s, repeats, say),
    }
    return of_parts("gpu", parts, only)


def _students(repeats: int, say: EmitLine) -> list[Figure]:
    """Steps of ResNet-18 at 224 pixels, views and labels on the device."""
    views, labels = _photos().cuda(), torch.arange(_BATCH, device="cuda") % 10
    steps = {name: partial(_step, _train_step(name), views, labels) for name in _RECIPES}
    return _compared("student_over_fp32", steps, "fp32", "times", repeats, say)


def _feed(repeats: int, say: EmitLine) -> list[Figure]:
    """Views from the host's memory, over views that lie on the device already."""
    train_step = _train_step("bf16_channels_last")
    feed, labels = DeviceFeed(train_step.device), torch.arange(_BATCH) % 10
    views = _photos()

    def fed(host_views: Tensor) -> None:
        _step(train_step, *feed.to_device(host_views, labels))
        feed.wait()

    steps = {
        "resident": partial(_step, train_step, views.cuda(), labels.cuda()),
        "pinned": partial(fed, views.pin_memory()),
        "pageable": partial(fed, views),
    }
    return _compared("fed_over_resident", steps, "resident", "ratio", repeats, say)


def _teachers(repeats: int, say: EmitLine) -> list[Figure]:
    """Each network of `bench teacher` by the engines of a GPU."""
    figures = []
    for name, (block, side, _) in NETWORKS.items():
        views, labels = _kinds(_LABELS, side)
        model = _taught(_network(block), views, labels)
        engines = [e for e in available_engines("cuda:0") if _tried(e, name)]
        figures += by_engine(name, model, views, engines, repeats, say, _ENGINES_S)
    return figures


def _tried(engine: Engine, network: str) -> bool:
    return not engine.slow_to_prepare or (
        engine.precision == "bf16" and network in _COMPILED
    )


def _served(repeats: int, say: EmitLine) -> list[Figure]:
    """Compare a teacher, from views in the host's memory to labels there, with its engine."""
    steps = _ways({"type": "timm/resnet50"}, 1e-3, _BATCH, say)
    return _compared("teacher_over_engine", steps, "bare", "ratio", repeats, say)


def _labels_per_s(
    repeats: int,
    say: EmitLine,
    published: Mapping[str, tuple[str, float, int]] = PUBLISHED,
) -> list[Figure]:
    """Measure labels/s, not a ratio: by the engine alone, and served."""
    figures = []
    for name, (variant, rate, batch) in published.items():
        steps = _ways({"type": variant}, rate, batch, say)
        steps = {"bare": steps["bare"], "served": steps["pipelined"]}
        rates = _rates(f"labels_per_s/{name}", steps, batch, repeats, say)
        figures += [
            figure(f"labels_per_s/{name}/{label}", values, "labels/s")
            for label, values in rates.items()
        ]
    return figures


def _ways(
    block: Mapping[str, object], rate: float, batch: int, say: EmitLine
) -> Mapping[str, Callable[[], object]]:
    """Return functions that label a batch: by a teacher's engine alone, and by the teacher."""
    on_device, labels = _kinds(batch)
    model = _taught(_network(block), on_device, labels, rate)
    views = on_device.cpu()
    deployment = Deployment(
        members=(),
        teacher="bench",
        num_classes=10,
        shape=(3, _SIDE, _SIDE),
        batch=batch,
        data={},
        identity=DataIdentity(digest="", images=0, classes=(), augment="", views=""),
        by_reference=False,
        components={},
        engine="auto",
    )

    class Made(Inference):
        def _load(self, weights: object) -> nn.Module:
            return model

    inference = Made(deployment, [], 1, _DEVICE)
    inference.choose_engine(say)
    assert inference.engines is not None
    predict, images = inference.engines.in_use.predict_unobserved, views.numpy()
    asked = partial(Request, 0, None, images, lambda answer: None, inference)
    under_way = list[UnderWay]()

    def request() -> None:
        under_way.extend(inference.begin([asked()]))
        if len(under_way) >= _UNDER_WAY:
            inference.finish(under_way.pop(0))

    def in_turn() -> None:
        inference.finish(*inference.begin([asked()]))

    bare: Callable[[], object] = partial(predict, on_device)
    return {"bare": bare, "pipelined": request, "in_turn": in_turn}


def _network(block: Mapping[str, object]) -> Normalised:
    torch.manual_seed(0)
    spec = construct(ModelSpec, from_dict(block, "network"))
    return spec.build(10, 3).to(_DEVICE)


def _kinds(count: int, side: int = _SIDE) -> tuple[Tensor, Tensor]:
    """Make views of ten kinds, labelled with their kinds, on the device."""
    labels = torch.arange(count, device=_DEVICE) % 10
    coarse = torch.rand((10, 3, 4, 4), device=_DEVICE)[labels]
    kinds = interpolate(coarse, size=(side, side), mode="bilinear")
    return (200 * kinds + 50 * torch.rand_like(kinds)).to(torch.uint8), labels


def _taught(
    model: Normalised, views: Tensor, labels: Tensor, rate: float = 1e-3
) -> Normalised:
    """Train until a model is sure of its answers, as teachers are: bf16 changes unsure ones."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(_TAUGHT):
        some = torch.arange(step, step + 64, device=_DEVICE) % len(views)
        optimizer.zero_grad()
        cross_entropy(model(views[some]), labels[some]).backward()
        optimizer.step()
    return model.eval().requires_grad_(requires_grad=False)


def _photos() -> Tensor:
    chance = np.random.default_rng(0)
    return torch.from_numpy(chance.integers(0, 256, (_BATCH, 3, _SIDE, _SIDE), np.uint8))


def _train_step(name: str) -> TrainStep:
    options = {"batch": _BATCH, "device": "cuda", "schedule": "constant", **_RECIPES[name]}
    recipe = construct(Recipe, from_dict(options, name))
    torch.manual_seed(0)
    model = TimmModel(variant="resnet18").build(10, 3)
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = model.to("cuda", memory_format=layout)  # type: ignore[call-overload]  # stubs miss memory_format
    run: nn.Module = torch.compile(model) if recipe.compile else model  # type: ignore[assignment]
    return TrainStep(recipe, model, run, torch.device("cuda"))


def _step(train_step: TrainStep, views: Tensor, labels: Tensor) -> None:
    train_step(cross_entropy(train_step.scores(views), labels), 1e-3)


def _compared(
    name: str,
    steps: Mapping[str, Callable[[], object]],
    base: str,
    unit: str,
    repeats: int,
    say: EmitLine,
) -> list[Figure]:
    """`name/STEP`, the rate of each over that of `base`, in turns."""
    rates = _rates(name, steps, _BATCH, repeats, say)
    return [
        figure(f"{name}/{label}", over(values, rates[base]), unit)
        for label, values in rates.items()
        if label != base
    ]


def _rates(
    name: str,
    steps: Mapping[str, Callable[[], object]],
    batch: int,
    repeats: int,
    say: EmitLine,
) -> dict[str, list[float]]:
    """Rows/s of each, in turns."""
    for step in steps.values():
        for _ in range(3):  # compiles, chooses kernels
            step()

    def seconds(step: Callable[[], object]) -> float:
        _finish()

        def work() -> None:
            for _ in range(_STEPS):
                step()
            _finish()

        return timed(work)

    works = {label: partial(seconds, step) for label, step in steps.items()}
    rates: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(repeats):
        for label, each in in_turns(works, _TURNS).items():
            rates[label].append(_STEPS * batch / median(each))
    medians = (f"{label} {median(values):,.0f}" for label, values in rates.items())
    say(f"{name}: {', '.join(medians)} rows/s")
    return rates


def _finish() -> None:
    if _DEVICE == "cuda":
        torch.cuda.synchronize()
