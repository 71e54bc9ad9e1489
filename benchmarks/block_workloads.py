"""Workloads of Pipe-BD at CIFAR-10's shape, for benchmarks: no accuracy here.

The paper's two, as their configs have them, and one that no pipeline of two devices balances: a
ResNet cut once, behind the second of its three stages, which has most of the work before it.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch

from kdlab.data.samples import PlannedSamples, planned
from kdlab.data.synthetic import Synthetic
from kdlab.methods.blockwise.cutting import Cuts, Cutting, cut_both
from kdlab.methods.blockwise.method import Blockwise
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.model import ModelSpec
from kdlab.papers.pipe_bd.stages import LEAD
from kdlab.run.experiment import load
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import TeacherSpec, frozen

Name = Literal["compression", "nas", "stages"]
CONFIGS = {"compression": "pipe_bd/vgg16_dsconv_cifar10", "nas": "pipe_bd/nas_cifar10"}


@dataclass(frozen=True, slots=True)
class Workload:
    teacher: ModelSpec
    student: ModelSpec
    cuts: Cuts
    recipe: Recipe
    norm: Literal["sync", "local"] = "sync"  # batch statistics of a shared stage
    lead: int = LEAD  # steps a stage may be ahead of the next

    def cutting(self, device: torch.device) -> Cutting:
        torch.manual_seed(0)
        teacher = frozen(self.teacher.build(10, 3))
        student = self.student.build(10, 3)
        return cut_both(self.cuts, teacher, student, self.student, (3, 32, 32), device)

    def samples(self, batch: int) -> PlannedSamples:
        data = Synthetic(samples=max(400, 10 * batch), size=32)
        return planned(data.load(), data.to_dict(), batch=batch, seed=0, epochs=1)


@cache
def workload(name: Name) -> Workload:
    """VGG-16 to separable blocks, MobileNetV2 to the search space, or a ResNet's stages."""
    if name == "stages":
        teacher, student = (CifarResNet(depth=d, width=(64, 64, 96, 128)) for d in (14, 8))
        cuts = Cuts(("blocks.3",), ("blocks.1",), 2, "soft_cross_entropy")
        recipe = Recipe(lr=0.05, epochs=1, threads=1, weight_decay=5e-4)
        return Workload(teacher, student, cuts, recipe, norm="local")
    spec = load(CONFIGS[name]).spec
    method = spec.method
    assert isinstance(method, Blockwise)
    assert isinstance(spec.teacher, TeacherSpec)
    recipe = replace(spec.train, epochs=1, batch=Recipe.batch, threads=1)
    return Workload(
        spec.teacher.model, spec.student, method.cuts, recipe, method.bn, method.lead
    )
