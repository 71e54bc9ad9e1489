"""What a whole served run gains by its teacher: by its engine, and by answers that are shared.

One teacher on one core, a student that is several times as quick on the other: the teacher is what
it waits for. The data are the bundled photos. The teacher has learned them, in two minutes when it
is first needed, and is kept: made-up weights tie classes, and a rounding in bf16 decides.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType

import torch

from benchmarks.apart import runs_apart
from benchmarks.sweep import carried_out
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.wires.security import remembered
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec
from kdlab.errors import RunFailed
from kdlab.events.event import unheard
from kdlab.events.teachers import PoolReady
from kdlab.events.training import EpochDone
from kdlab.models.model import Normalised
from kdlab.report.figures import Figure, Say, figure
from kdlab.run.experiment import Experiment
from kdlab.train.teacher import TeacherSpec, prepare

_DATA = MappingProxyType(
    {"use": "data/clothes", "size": 64, "augment": {"flip": True, "resized_crop": None}}
)
_MODEL = MappingProxyType({"type": "timm/resnet18"})
# So light that it never is what is waited for: a ResNet-8 of 4 to 8 channels was.
_STUDENT = MappingProxyType({"type": "models/patch_net", "patch": 16, "width": 16})
_TRAIN = MappingProxyType({"batch": 64, "threads": 1, "lr": 0.05})
_LEARNS = MappingProxyType(
    {"batch": 64, "epochs": 14, "optimizer": "adamw", "lr": 1e-3, "precision": "bf16"}
)
# The first ones begin before engines were compared; with eager there is nothing to wait for.
_FROM = MappingProxyType({"auto": 16, "eager": 1})
_UNTIL = MappingProxyType({"auto": 24, "eager": 4})
_TRIALS = 8


def gains(repeats: int, say: Say) -> list[Figure]:
    """`gain_end_to_end` and `served_over_engine`: samples/s of runs, in turns."""
    over_eager, over_engine = list[float](), list[float]()
    with _teacher() as (base, samples):
        for number in range(repeats):
            rates, shares = dict[str, float](), dict[str, float]()
            for engine in ("eager", "auto") if number % 2 else ("auto", "eager"):
                rates[engine], shares[engine] = _run(base, engine, samples)
                say(
                    f"{engine}: {rates[engine]:.0f} samples/s, {shares[engine]:.2f} of its "
                    "teacher's"
                )
            over_eager.append(rates["auto"] / rates["eager"])
            over_engine.append(shares["auto"])
    return [
        figure("gain_end_to_end", over_eager, "times", ">= 1.8"),
        figure("served_over_engine", over_engine, "ratio", ">= 0.9"),
    ]


def shared(repeats: int, say: Say) -> list[Figure]:
    """`shared_over_alone`: a sweep of eight trials with answers that are shared, and without."""
    times = list[float]()
    with _teacher() as (base, _):
        for number in range(repeats):
            seconds = {}
            for share in (True, False) if number % 2 else (False, True):
                seconds[share] = _sweep(base, f"share{number}-{share}", share)
            times.append(seconds[False] / seconds[True])
            say(
                f"{_TRIALS} trials: {seconds[False]:.0f} s, {seconds[True]:.0f} s with sharing"
            )
    return [figure("shared_over_alone", times, "times", ">= 2")]


@contextmanager
def _teacher() -> Iterator[tuple[dict[str, object], int]]:
    """A spec with a teacher that has learned these photos, and the samples of an epoch."""
    teacher = {
        "type": "train/teacher",
        "model": dict(_MODEL),
        "data": dict(_DATA),
        "recipe": dict(_LEARNS),
    }
    with runs_apart():
        data = construct(DataSpec, from_dict(_DATA, "data")).load()
        prepare(construct(TeacherSpec, from_dict(teacher, "teacher")), unheard)
        base: dict[str, object] = {
            "data": dict(_DATA),
            "teacher": teacher,
            "student": dict(_STUDENT),
            "loss": {"type": "losses/hinton"},
            "soft_labels": {"type": "cluster/served"},
            "tracking": {"enabled": False},
        }
        yield base, len(data.train)


def _run(base: dict[str, object], engine: str, samples: int) -> tuple[float, float]:
    """Samples/s of a run once it has settled, and the same over its teacher's own t_t."""
    first, last = _FROM[engine], _UNTIL[engine]
    pool = {"type": "cluster/local_pool", "teachers": 1, "engine": engine}
    tree = {**base, "teacher_pool": pool, "train": {**_TRAIN, "epochs": last}}
    run = Experiment(from_dict(tree, f"bench-{engine}")).start(lambda line: None)
    address, ended, t_t = "", dict[int, float](), list[float]()
    for event in run.events(follow=True):
        if isinstance(event, PoolReady):
            address = event.address
        elif isinstance(event, EpochDone):
            ended[event.epoch] = event.time
            if first <= event.epoch < last:  # after the last one the pool goes
                t_t += [t.t_t for t in status_of(address, remembered(address)).ready]
    if last not in ended:
        raise RunFailed(f"The run did not end well; see {run.path}.")
    rate = samples * (last - first) / (ended[last] - ended[first])
    return rate, rate / median(t_t)


def _sweep(base: dict[str, object], study: str, share: bool) -> float:
    """Seconds from the first trial's beginning to the last one's end."""
    pool = {"type": "cluster/local_pool", "teachers": 1, "share_answers": share}
    tree = {**base, "teacher_pool": pool, "train": {**_TRAIN, "epochs": 2}}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shared.yaml"
        path.write_text(json.dumps(tree), encoding="utf-8")  # which is YAML too
        spec: dict[str, object] = {
            "experiment": str(path),
            "space": {"loss.temperature": {"low": 1, "high": 8}},
            "objectives": [{"metric": "validation_top1"}],
            "trials": _TRIALS,
            "confirm": None,
            "tracking": {"enabled": False},
        }
        seconds, _ = carried_out(spec, study)
    return seconds


@torch.no_grad()
def see(model: Normalised, views: torch.Tensor) -> None:
    """Batch norms with statistics of these views, as a trained network has them."""
    model.train()
    for _ in range(3):
        model(views)
    model.eval()
