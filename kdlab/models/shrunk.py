"""Networks whose input has another size than the views."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate

from kdlab.config import Range, register
from kdlab.models.model import ModelSpec

_INNER = "inner."


class Shrunk(nn.Module):
    """Resizes views for a network: by the mean of k by k pixels, or else bilinearly."""

    def __init__(self, inner: nn.Module, size: int) -> None:
        super().__init__()
        self.inner, self.size = inner, size

    def extra_repr(self) -> str:
        """Show its size: kept engines are identified by the repr of a network."""
        return f"size={self.size}"

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, H) -> (N, classes)."""
        k, rest = divmod(x.shape[-1], self.size)
        if rest or not k:
            size = self.size, self.size
            x = interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
        elif k > 1:
            x = avg_pool2d(x, k)
        return self.inner(x)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load its state, or that of the network inside."""
        if not any(name.startswith(_INNER) for name in state_dict):
            state_dict = {_INNER + name: own for name, own in state_dict.items()}
        return super().load_state_dict(state_dict, strict, assign)


@register("models/shrunk")
@dataclass(frozen=True, kw_only=True)
class ShrunkModel(ModelSpec):
    """A network that gets the shared view at another size.

    Teacher and student see one view, of `data.size` pixels: the largest size of all. This network
    gets the mean of 2 by 2, 3 by 3, ... pixels of it (bilinear with antialiasing where its size is
    no divisor), and costs what it costs at its size.

    model: the network.
    size: pixels of a side of its input.
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
        """Return its file, else the origin of the network inside."""
        return self.weights or self.model.origin()

    @classmethod
    def from_model(cls, model: ModelSpec, size: int) -> Self:
        """Wrap a network at a size; its weights file becomes the wrapper's."""
        bare = replace(model, weights=None, sha256=None)
        return cls(model=bare, size=size, weights=model.weights, sha256=model.sha256)
