"""Blockwise distillation small enough for tests of functions: three pairs of blocks, of digits."""

from contextlib import nullcontext
from dataclasses import replace

import torch

import kdlab
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.method import MemberTraining
from kdlab.experiment.setup import TrainingSetup
from kdlab.methods.blockwise.cutting import Cuts, cut_both
from kdlab.methods.blockwise.job import BlockwiseJob
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import export
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.train.evaluate import Accuracy
from kdlab.train.recipe import Recipe
from kdlab.train.result import MemberResult

CPU = torch.device("cpu")
TEACHER = CifarResNet(depth=8, width=(4, 4, 8, 8))
STUDENT = CifarResNet(depth=8, width=(4, 4, 8, 8))


def cutting():
    """Cut both, the same each time; not in a thread: torch.fx traces in one only."""
    torch.manual_seed(7)
    teacher, student = TEACHER.build(10, 1), STUDENT.build(10, 1)
    cuts = Cuts((), (), 3, "soft_cross_entropy")
    return cut_both(cuts, teacher, student, STUDENT, (1, 8, 8), CPU)


def programme(devices=1, batch=16, name="tr"):
    """A plan of so many devices, one behind the other."""
    ends = {1: [3], 2: [1, 3], 3: [1, 2, 3]}[devices]
    plan = replace(pipeline(batch, ends, [1] * devices), lead=1)
    return ExecutionPlan(name, (plan,), 0.01, "as told")


def job(cut, samples, folder, recorder, *, rank=0, devices=1, recipe=None, **more):
    """The job of one device."""
    options = {"epochs": 2, "batch": 16, "lr": 0.05, "log_every_steps": 1, "device": "cpu"}
    folder.mkdir(exist_ok=True)
    return BlockwiseJob(
        recipe=Recipe(**options | (recipe or {})),
        samples=samples,
        seed=7,
        folder=folder,
        spec_hash="h",
        emit=recorder.emit,
        **{
            "stop": recorder.stop,
            "cutting": cut,
            "programme": programme(devices),
            "norm": "sync",
            "rank": rank,
            "device": CPU,
        }
        | more,
    )


def weights(cut):
    return {k: v.clone() for k, v in cut.student.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def member_training(place, data, *words, stop=lambda: False):
    """A member's training, with teacher and run in a folder, and the events that it emits."""
    weights, events = place / "teacher.safetensors", []
    torch.manual_seed(1)
    export(TEACHER.build(10, 1), TEACHER, weights, data)
    spec = kdlab.load(
        "smoke/blockwise",
        "teacher={type: train/teacher, model: {type: models/cifar_resnet, depth: 8,"
        f" width: [4, 4, 8, 8], weights: {weights}}}}}",
        *words,
    ).spec
    run = RunFolder(place / "run")
    run.path.mkdir(exist_ok=True)
    member = spec.members()[0]
    folder = run.member(member.name)
    folder.mkdir(parents=True, exist_ok=True)
    training = MemberTraining(
        setup=TrainingSetup(spec, stop=stop), member=member, run=run, folder=folder,
        emit=events.append, pools=None, hosts=None, chaos=lambda pool, targets: nullcontext(),
    )  # fmt: skip
    return training, events


BEFORE = Accuracy(top1=1.0, top5=2.0, samples=300)


def distilled(training, spec, data, **more):
    """A made-up result of a distillation in blocks, with fresh weights."""
    torch.manual_seed(5)
    path = training.folder / "student.safetensors"
    model = spec.build(10, 1)
    export(model, spec, path, data)
    usual = {
        "last": BEFORE, "best": BEFORE, "model_path": str(path), "best_path": str(path),
        "epochs": 9, "steps": 90, "seen": 900, "train_seconds": 4.5, "failovers": [0.25],
        "validation_last": 1.0, "validation_best": 1.0, "best_epoch": 9, "lost": 0,
        "samples_per_second": 200.0, "repeated": 0, "rolled_back": 0, "figures": {},
        "parameters": 7,
    }  # fmt: skip
    return MemberResult(**usual | more)
