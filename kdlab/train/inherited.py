"""What a student takes over from a teacher of its family before it learns.

A network that was made smaller in some of its layers is its teacher's in all others. Those begin
with the teacher's tensors, and what stands in for a layer as what is nearest to it.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.models.model import Normalised, evaluating
from kdlab.models.separable import SeparableConv

_OWN = 0.5  # share of a student's layers that a teacher of another family has by chance, at most
_FEW, _MANY, _VALUES = 16, 256, 2**21  # images that stand-ins are fitted to


@torch.no_grad()
def inherit(student: Normalised, teacher: Normalised, data: ImageData) -> bool:
    """Copy tensors of the same name and shape; separable convolutions begin as the nearest.

    Args:
        student: with weights that mean nothing yet.
        teacher: on the same device.
        data: stand-ins are fitted to what the teacher makes of some of its training images.

    Returns:
        False, with nothing copied: most of the student's layers have no counterpart in the
        teacher, or all of them have, and nothing would be left to learn.
    """
    return inherit_layers(student.net, teacher.net, some_views(teacher, data))


def some_views(model: Normalised, data: ImageData) -> Tensor:
    """(N, C, H, W) training images as the model's network takes them: the same each time.

    Every class in its share; fewer where images are large.
    """
    count = max(_FEW, min(_MANY, _VALUES // prod(data.shape)))
    rows = by_class(data.train, data.labels, count, 0)[0]
    images = torch.from_numpy(data.inputs[rows]).to(model.mean.device)
    return (images - model.mean) / model.std


@torch.no_grad()
def inherit_layers(student: nn.Module, teacher: nn.Module, views: Tensor) -> bool:
    """The same for (N, C, H, W) as the teacher's network takes them."""
    pairs = _replaced(student, teacher)
    within = tuple(f"{name}." for name in pairs)
    theirs = teacher.state_dict()
    own = {k: v for k, v in student.state_dict().items() if not k.startswith(within)}
    same = {
        k: theirs[k] for k, v in own.items() if k in theirs and theirs[k].shape == v.shape
    }
    shared, wanted = len(same) + len(pairs), len(own) + len(pairs)
    if shared <= _OWN * wanted or len(same) == len(theirs) == len(own):
        return False
    student.load_state_dict(same, strict=False)
    for name, views_there in _inputs(teacher, [*pairs], views).items():
        made, conv = pairs[name]
        made.inherit(conv, views_there)
    return True


def _replaced(
    student: nn.Module, teacher: nn.Module
) -> dict[str, tuple[SeparableConv, nn.Conv2d]]:
    """Separable convolutions, and what they stand in for, by name."""
    theirs = dict(teacher.named_modules())
    return {
        name: (made, conv)
        for name, made in student.named_modules()
        if isinstance(made, SeparableConv)
        and isinstance(conv := theirs.get(name), nn.Conv2d)
        and made.stands_for(conv)
    }


def _inputs(teacher: nn.Module, names: list[str], views: Tensor) -> dict[str, Tensor]:
    """What modules of the teacher get of these images."""
    found = dict[str, Tensor]()

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            found[name] = given[0]

        return hook

    handles = [
        teacher.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names
    ]
    with evaluating(teacher):
        teacher(views)
    for handle in handles:
        handle.remove()
    return found
