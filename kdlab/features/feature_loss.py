"""The base of all losses between inner outputs: where they are taken, and what they weigh."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate

from kdlab.config import Fault
from kdlab.config.spec import NOT_NEGATIVE, Spec
from kdlab.features.balance import BalanceBy, core_of

Shape = tuple[int, ...]
"""Of one image: (D,) of a vector, (tokens, D), or (C, H, W) of a map, channels first."""


@dataclass(frozen=True, kw_only=True)
class FeatureLossSpec(Spec, ABC):
    """What every loss between inner outputs can be told.

    teacher, student: modules by name whose outputs are compared, such as layer3 or
        blocks.5.norm1; `penultimate` is what the last linear layer is given.
    of: the teacher by its name, where there are several (`teacher.name`).
    weight: on top of the hard and the soft loss.
    projector: where the student's output has another width, `linear` learns to bring it to
        the teacher's (1x1 convolutions of maps); `mlp` does it in two layers, at any width; `none`
        refuses that.
    balance: the teacher's features less their mean, over their spread: `overall` over one,
        `channel` each channel over its own, `phi` over one after a rotation that makes it every
        channel's own. Taken of some training images before the start.
    learn_weight: of several losses each weight is learned, from `weight` on (Kendall et al. 2018,
        arXiv:1705.07115): exp(-s) times the loss, and s.
    """

    needs_width: ClassVar[bool] = True  # the same on both sides
    is_spatial: ClassVar[bool] = False  # compares maps, not vectors

    teacher: str = "penultimate"
    student: str = "penultimate"
    of: str | None = None
    weight: Annotated[float, NOT_NEGATIVE] = 1.0
    projector: Literal["linear", "mlp", "none"] = "linear"
    balance: BalanceBy = "none"
    learn_weight: bool = False

    def cross_faults(self) -> Iterator[Fault]:
        if self.learn_weight and not self.weight:
            yield Fault("weight", "is 0, and learn_weight begins with it; 1 is usual")

    @abstractmethod
    def distance(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The mean over the batch; zero where they agree.

        Args:
            student: (N, ...) of the student, projected where that is needed.
            teacher: (N, ...) of the teacher; gets no gradient. Maps have the same height
                and width on both sides.
        """

    def misfit(self, student: Shape, teacher: Shape) -> str:
        """Why outputs of these shapes cannot be compared; empty where they can."""
        unknown = {len(student), len(teacher)} - {1, 2, 3}
        if unknown:
            return (
                f"{_named(student)} and {_named(teacher)}; vectors, tokens and maps can be"
            )
        if len(student) != len(teacher):
            return f"{_named(student)} of the student and {_named(teacher)} of the teacher"
        if self.is_spatial and len(student) != 3:
            return f"{_named(student)}, and {self.component} compares maps"
        if self.needs_width and len(student) == 2 and student[0] != teacher[0]:
            return f"{student[0]} tokens of the student, {teacher[0]} of the teacher"
        own, theirs = _width(student), _width(teacher)
        if self.needs_width and self.projector == "none" and own != theirs:
            return f"{own} of the student, {theirs} of the teacher, and no projector"
        if self.balance == "phi" and core_of(theirs) is None:
            return (
                f"balance is phi, and no Hadamard matrix of order {theirs} is known here (of most "
                "multiples of 4 there is one); channel takes any width"
            )
        return ""

    def projection(self, student: Shape, teacher: Shape) -> nn.Module:
        """What brings the student's output to the teacher's width."""
        own, theirs = _width(student), _width(teacher)
        if not self.needs_width or (own == theirs and self.projector != "mlp"):
            return nn.Identity()
        is_map, widest = len(student) == 3, max(own, theirs)
        if self.projector != "mlp":
            return (
                nn.Conv2d(own, theirs, 1, bias=False) if is_map else nn.Linear(own, theirs)
            )
        first, last = (
            nn.Conv2d(a, b, 1) if is_map else nn.Linear(a, b)
            for a, b in ((own, widest), (widest, theirs))
        )
        return nn.Sequential(first, nn.GELU(), last)


def _width(shape: Shape) -> int:
    """Channels of a map; numbers of a vector, and of each token."""
    return shape[0] if len(shape) == 3 else shape[-1]


def _named(shape: Shape) -> str:
    kind = {1: "a vector", 2: "tokens", 3: "a map"}.get(len(shape), "an output")
    return f"{kind} of {'×'.join(map(str, shape))}"


def meeting(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Maps of one height and width: the larger is averaged, as mdistiller's peers do it."""
    if student.ndim != 4 or student.shape[2:] == teacher.shape[2:]:
        return student, teacher
    if student.shape[2] > teacher.shape[2]:
        return adaptive_avg_pool2d(student, _size(teacher)), teacher
    if student.shape[2] < teacher.shape[2]:
        return student, adaptive_avg_pool2d(teacher, _size(student))
    return interpolate(student, _size(teacher)), teacher


def _size(maps: Tensor) -> tuple[int, int]:
    return maps.shape[2], maps.shape[3]


def rows(features: Tensor) -> Tensor:
    """(N, ...) -> (N, D)."""
    return features.flatten(1) if features.ndim > 2 else features


def unit(features: Tensor, dim: int = 1) -> Tensor:
    """Features of length 1 along a dimension; zeros stay zeros, and have no gradient."""
    return torch.nn.functional.normalize(features, dim=dim) * features.any(
        dim, keepdim=True
    )
