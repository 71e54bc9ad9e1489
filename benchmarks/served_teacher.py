"""Gain of a whole served run by its teacher: by its engine, and by answers that are shared.

A teacher has one core, and a student that is several times as fast has the other: the student
waits for the teacher. The data are the bundled photos. The teacher learns them in two minutes when
it is first needed, and is cached: random weights tie classes, and a rounding in bf16 decides.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.harness import in_turns, quiet, runs_apart
from benchmarks.sweep import carried_out
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.transport.security import load_credentials
from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.data.images import DataSpec
from kdlab.errors import RunFailed
from kdlab.events.event import discard_event
from kdlab.events.teachers import PoolReady
from kdlab.events.training import EpochDone
from kdlab.models.model import Normalised
from kdlab.report.figures import EmitLine, Figure, figure, over
from kdlab.run.experiment import Experiment
from kdlab.train.teacher import TeacherSpec, prepare

_PHOTOS = {
    "use": "data/clothes",
    "size": 64,
    "augment": {"flip": True, "resized_crop": None},
}
_LEARNS = {"batch": 64, "epochs": 14, "optimizer": "adamw", "lr": 1e-3, "precision": "bf16"}
_TEACHER = {
    "type": "train/teacher",
    "model": {"type": "timm/resnet18"},
    "data": _PHOTOS,
    "recipe": _LEARNS,
}
_BASE: Mapping[str, object] = {
    "data": _PHOTOS,
    "teacher": _TEACHER,
    # So light that it is never the bottleneck; a ResNet-8 of 4 to 8 channels was.
    "student": {"type": "models/patch_net", "patch": 16, "width": 16},
    "loss": {"type": "losses/hinton"},
    "soft_labels": {"type": "cluster/served"},
    "tracking": {"enabled": False},
}
_TRAIN = {"batch": 64, "threads": 1, "lr": 0.05}
# Timed epochs: earlier ones begin before engines are compared; eager compares none.
_FROM, _UNTIL = {"auto": 16, "eager": 1}, {"auto": 24, "eager": 4}
_TRIALS = 8


def gains(repeats: int, say: EmitLine) -> list[Figure]:
    """`gain_end_to_end` and `served_over_engine`: samples/s of runs, in turns."""
    shares: dict[str, list[float]] = {"auto": [], "eager": []}
    with _teacher() as samples:
        works = {e: partial(_run, e, samples, ratios) for e, ratios in shares.items()}
        rates = in_turns(works, repeats, say, "samples/s")
    return [
        figure("gain_end_to_end", over(rates["auto"], rates["eager"]), "times"),
        figure("served_over_engine", shares["auto"], "ratio"),
    ]


def shared(repeats: int, say: EmitLine) -> list[Figure]:
    """`shared_over_alone`: a sweep of eight trials with answers that are shared, and without."""
    with _teacher():
        each, number = {"alone": False, "shared": True}, count()
        works = {name: partial(_sweep, number, share) for name, share in each.items()}
        seconds = in_turns(works, repeats, say, f"s of {_TRIALS} trials")
    return [figure("shared_over_alone", over(seconds["alone"], seconds["shared"]), "times")]


@contextmanager
def _teacher() -> Iterator[int]:
    """Train the teacher unless it is cached; yield the number of samples of an epoch."""
    with runs_apart():
        data = construct(DataSpec, from_dict(_PHOTOS, "data")).load()
        prepare(construct(TeacherSpec, from_dict(_TEACHER, "teacher")), discard_event)
        yield len(data.train)


def _run(engine: str, samples: int, shares: list[float]) -> float:
    """Samples/s of a run once it has settled; the same over its teacher's t_t joins `shares`."""
    first, last = _FROM[engine], _UNTIL[engine]
    pool = {"type": "cluster/local_pool", "teachers": 1, "engine": engine}
    tree = {**_BASE, "teacher_pool": pool, "train": {**_TRAIN, "epochs": last}}
    run = Experiment(from_dict(tree, f"bench-{engine}")).start(quiet)
    address, ended, t_t = "", dict[int, float](), list[float]()
    for event in run.events(follow=True):
        if isinstance(event, PoolReady):
            address = event.address
        elif isinstance(event, EpochDone):
            ended[event.epoch] = event.time
            if first <= event.epoch < last:  # after the last one the pool goes
                t_t += [t.t_t for t in status_of(address, load_credentials(address)).ready]
    if last not in ended:
        raise RunFailed(f"The run did not end well; see {run.path}.")
    rate = samples * (last - first) / (ended[last] - ended[first])
    shares.append(rate / median(t_t))
    return rate


def _sweep(number: Iterator[int], share: bool) -> float:
    """Seconds from the first trial's beginning to the last one's end."""
    pool = {"type": "cluster/local_pool", "teachers": 1, "share_answers": share}
    tree = {**_BASE, "teacher_pool": pool, "train": {**_TRAIN, "epochs": 2}}
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
        seconds, _ = carried_out(spec, f"share{next(number)}")
    return seconds


@torch.no_grad()
def see(model: Normalised, views: torch.Tensor) -> None:
    """Batch norms with statistics of these views, as a trained network has them."""
    model.train()
    for _ in range(3):
        model(views)
    model.eval()
