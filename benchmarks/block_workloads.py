"""Workloads of Pipe-BD at CIFAR-10's shape, for benchmarks: no accuracy here.

The paper's two, and one that no pipeline of two devices balances: a ResNet cut once, behind the
second of its three stages, which has most of the work before it.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from kdlab.data.samples import PlannedSamples, planned
from kdlab.data.synthetic import Synthetic
from kdlab.methods.blockwise.cutting import Cuts, Cutting, cut_both
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.models.cifar_vgg import CifarVgg
from kdlab.models.model import ModelSpec
from kdlab.models.proxyless import Proxyless
from kdlab.models.proxyless_supernet import ProxylessSupernet
from kdlab.models.separable import Separable
from kdlab.train.recipe import Recipe
from kdlab.train.teacher import frozen

Name = Literal["compression", "nas", "stages"]

# VGG-16 has 13 convolutions, each with norm and activation behind it: 13 blocks.
_VGG_ENDS = (2, 5, 9, 12, 16, 19, 22, 26, 29, 32, 36, 39)


@dataclass(frozen=True, slots=True)
class Workload:
    name: Name
    teacher: ModelSpec
    student: ModelSpec
    cuts: Cuts
    recipe: Recipe
    norm: Literal["sync", "local"] = "sync"  # batch statistics of a shared stage

    def cutting(self, device: torch.device) -> Cutting:
        torch.manual_seed(0)
        teacher = frozen(self.teacher.build(10, 3))
        student = self.student.build(10, 3)
        return cut_both(self.cuts, teacher, student, self.student, (3, 32, 32), device)

    def samples(self, batch: int) -> PlannedSamples:
        data = Synthetic(samples=max(400, 10 * batch), size=32)
        return planned(data.load(), data.to_dict(), batch=batch, seed=0, epochs=1)


def workload(name: Name) -> Workload:
    """VGG-16 to separable blocks, MobileNetV2 to the search space, or a ResNet's stages."""
    if name == "compression":
        ends = tuple(f"features.{end}" for end in _VGG_ENDS)
        recipe = Recipe(lr=0.1, epochs=1, threads=1, weight_decay=5e-4)
        vgg = CifarVgg(depth=16)
        separable = Separable(of=vgg, only=(2, 3, 8, 9, 11, 12))  # Table II's
        return Workload(name, vgg, separable, _cuts(ends), recipe)
    if name == "stages":
        width = (64, 64, 96, 128)
        cuts = Cuts(("blocks.3",), ("blocks.1",), 2, "soft_cross_entropy")
        recipe = Recipe(lr=0.05, epochs=1, threads=1, weight_decay=5e-4)
        teacher, student = (CifarResNet(depth=depth, width=width) for depth in (14, 8))
        return Workload(name, teacher, student, cuts, recipe, norm="local")
    ends = tuple(f"stages.{stage}" for stage in range(5))
    recipe = Recipe(lr=0.005, epochs=1, threads=1, nesterov=True, weight_decay=5e-4)
    found = Proxyless(small=True), ProxylessSupernet(small=True)
    return Workload(name, *found, _cuts(ends), recipe)


def _cuts(ends: tuple[str, ...]) -> Cuts:
    """Both networks cut at the same modules."""
    return Cuts(ends, ends, len(ends) + 1, "soft_cross_entropy")
