"""The base of all losses between inner outputs of teacher and student."""

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
    """Options of every loss between inner outputs.

    teacher, student: modules by name whose outputs are compared, such as layer3 or
        blocks.5.norm1; `penultimate` is the input of the last linear layer.
    of: name of the teacher, where there are several (`teacher.name`).
    weight: of this loss, which is added to the hard and the soft loss.
    projector: where the student's output has another width, `linear` learns a projection to
        the teacher's (1x1 convolutions of maps); `mlp` does it in two layers, at any width; `none`
        refuses that.
    balance: centres the teacher's features and divides them by their spread: `overall` by one,
        `channel` each channel by its own, `phi` by one after a rotation that makes all equal.
        Measured on some training images before the start.
    learn_weight: of several losses each weight is learned, from `weight` on (Kendall et al. 2018,
        arXiv:1705.07115): exp(-s) times the loss, and s.
    """

    needs_width: ClassVar[bool] = True  # equal widths of both sides
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
        """Compute the mean distance over the batch; zero where both agree.

        Args:
            student: (N, ...) outputs of the student, projected where needed.
            teacher: (N, ...) outputs of the teacher; gets no gradient. Maps have the same
                height and width on both sides.
        """

    def misfit(self, student: Shape, teacher: Shape) -> str:
        """Return the reason why outputs of these shapes cannot be compared, or an empty string."""
        unknown = {len(student), len(teacher)} - {1, 2, 3}
        if unknown:
            return f"{_describe(student)} and {_describe(teacher)}; vectors, tokens and maps can be"
        if len(student) != len(teacher):
            return f"{_describe(student)} of the student and {_describe(teacher)} of the teacher"
        if self.is_spatial and len(student) != 3:
            return f"{_describe(student)}, and {self.component} compares maps"
        if self.needs_width and len(student) == 2 and student[0] != teacher[0]:
            return f"{student[0]} tokens of the student, {teacher[0]} of the teacher"
        width, target = _width(student), _width(teacher)
        if self.needs_width and self.projector == "none" and width != target:
            return f"{width} of the student, {target} of the teacher, and no projector"
        if self.balance == "phi" and core_of(target) is None:
            return (
                f"balance is phi, and no Hadamard matrix of order {target} is known here (of most "
                "multiples of 4 there is one); channel takes any width"
            )
        return ""

    def projection(self, student: Shape, teacher: Shape) -> nn.Module:
        """Create the projector from the student's width to the teacher's."""
        width, target = _width(student), _width(teacher)
        if not self.needs_width or (width == target and self.projector != "mlp"):
            return nn.Identity()
        is_map, widest = len(student) == 3, max(width, target)
        if self.projector != "mlp":
            return (
                nn.Conv2d(width, target, 1, bias=False)
                if is_map
                else nn.Linear(width, target)
            )
        first, last = (
            nn.Conv2d(a, b, 1) if is_map else nn.Linear(a, b)
            for a, b in ((width, widest), (widest, target))
        )
        return nn.Sequential(first, nn.GELU(), last)


def _width(shape: Shape) -> int:
    """Return the channels of a map, or the length of a vector or token."""
    return shape[0] if len(shape) == 3 else shape[-1]


def _describe(shape: Shape) -> str:
    kind = {1: "a vector", 2: "tokens", 3: "a map"}.get(len(shape), "an output")
    return f"{kind} of {'×'.join(map(str, shape))}"


def match_resolution(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Average the larger of two maps to the size of the smaller, as in mdistiller."""
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
    """Normalise features to length 1 along a dimension; zeros stay zeros, without gradient."""
    return torch.nn.functional.normalize(features, dim=dim) * features.any(
        dim, keepdim=True
    )
