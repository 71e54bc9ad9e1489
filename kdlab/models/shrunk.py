"""A student that looks at the same views as its teacher, with fewer pixels."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from kdlab.config import Range, register
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec


class Shrunk(nn.Module):
    """A network behind the mean of k by k pixels; takes views of k times its own size."""

    def __init__(self, inner: nn.Module, size: int) -> None:
        super().__init__()
        self.inner, self.size = inner, size

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, k size, k size) -> (N, classes)."""
        side = x.shape[-1]
        if side % self.size:
            near = max(1, round(side / self.size)) * self.size
            raise ModelError(
                f"Views of {side} pixels cannot be shrunk to {self.size}: the mean is of 4, 9, 16 "
                f"... pixels. Set data.size to {near}, or student.size to a divisor of {side}."
            )
        k = side // self.size
        return self.inner(avg_pool2d(x, k)) if k > 1 else self.inner(x)


@register("models/shrunk")
@dataclass(frozen=True, kw_only=True)
class ShrunkModel(ModelSpec):
    """A network beside a teacher of larger images: each view is shrunk before it.

    Teacher and student see one view, of `data.size` pixels: the teacher's size. The student gets
    the mean of 2 by 2, 3 by 3, ... pixels of it, and costs what it costs at its own size.

    model: the network.
    size: pixels of a side that it is given; data.size is a multiple of it.
    """

    model: ModelSpec
    size: Annotated[int, Range(ge=1, le=4096)]

    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        return Shrunk(self.model.architecture(num_classes, in_chans), self.size)

    def holders(self, net: nn.Module) -> list[tuple[ModelSpec, nn.Module]]:
        assert isinstance(net, Shrunk)
        # The outer file counts.
        return [*self.model.holders(net.inner), *super().holders(net)]

    def origin(self) -> str | None:
        """Its file's, else that of the network inside."""
        return self.weights or self.model.origin()
