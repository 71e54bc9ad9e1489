"""Blockwise distillation small enough for tests of functions: three pairs of blocks, of digits."""

from dataclasses import replace

import torch

from kdlab.methods.blockwise.cutting import Cuts, cut_both
from kdlab.methods.blockwise.job import BlockwiseJob
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.papers.pipe_bd.execution_plan import ExecutionPlan
from kdlab.papers.pipe_bd.stages import pipeline
from kdlab.train.recipe import Recipe

CPU = torch.device("cpu")
TEACHER = CifarResNet(depth=8, width=(4, 4, 8, 8))
STUDENT = CifarResNet(depth=8, width=(4, 4, 8, 8))


def cutting():
    """The same each time; not in a thread, since torch.fx traces in one only."""
    torch.manual_seed(7)
    teacher, student = TEACHER.build(10, 1), STUDENT.build(10, 1)
    cuts = Cuts((), (), 3, "soft_cross_entropy")
    return cut_both(cuts, teacher, student, STUDENT, (1, 8, 8), CPU)


def programme(devices=1, batch=16, name="tr"):
    """So many devices, one behind the other."""
    ends = {1: [3], 2: [1, 3], 3: [1, 2, 3]}[devices]
    plan = replace(pipeline(batch, ends, [1] * devices), lead=1)
    return ExecutionPlan(name, (plan,), 0.01, "as told")


def job(cut, samples, folder, recorder, *, rank=0, devices=1, recipe=None, **more):
    """What a device is told."""
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


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)
