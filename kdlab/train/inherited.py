"""What a student takes over from a teacher of its family before it learns.

A network that was made smaller in some of its layers is its teacher's in all others. Those begin
with the teacher's tensors, and what stands in for a layer as what is nearest to it.
"""

from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.models.model import Normalised, evaluating
from kdlab.models.separable import SeparableConv

_OWN = 0.5  # share of a student's layers that a teacher of another family has by chance, at most
_FEW, _MANY, _VALUES = 16, 256, 2**21  # images that stand-ins are fitted to
_TINY = 1e-12  # variance of a channel that is silent
_Pairs = dict[str, tuple[SeparableConv, nn.Conv2d]]  # stand-ins and convolutions by name


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
    _Fitting(pairs).run(student, teacher, views)
    return True


class _Fitting:
    """Fits stand-ins in the order in which a forward pass of the student comes to them.

    Each gets what the student makes of the images so far, and is fitted to the teacher's output
    of its place: so it makes up for what those before it changed. The norm behind it brings
    mean and variance to the teacher's.
    """

    def __init__(self, pairs: _Pairs) -> None:
        self.pairs = pairs
        self._outputs: dict[str, Tensor] = {}  # of the teacher's convolutions
        self._last: tuple[Tensor, Tensor] | None = (
            None  # of a stand-in, and as it should be
        )

    def run(self, student: nn.Module, teacher: nn.Module, views: Tensor) -> None:
        handles: list[RemovableHandle] = []
        for name, (made, conv) in self.pairs.items():
            handles += [
                conv.register_forward_hook(partial(self._keep, name)),
                made.register_forward_pre_hook(partial(self._fit, name)),
                made.register_forward_hook(partial(self._remember, name)),
            ]
        for norm in student.modules():
            if isinstance(norm, nn.BatchNorm2d) and norm.track_running_stats:
                handles.append(norm.register_forward_pre_hook(self._correct))
        with evaluating(teacher), evaluating(student):
            teacher(views)
            student(views)
        for handle in handles:
            handle.remove()

    def _keep(self, name: str, conv: nn.Module, given: object, output: Tensor) -> None:
        self._outputs[name] = output.clone()  # what comes behind may write over it

    def _fit(self, name: str, made: nn.Module, given: tuple[Tensor, ...]) -> None:
        stand_in, conv = self.pairs[name]
        stand_in.inherit(conv, given[0], self._outputs[name])

    def _remember(self, name: str, made: nn.Module, given: object, output: Tensor) -> None:
        self._last = output, self._outputs.pop(name)

    def _correct(self, norm: nn.BatchNorm2d, given: tuple[Tensor, ...]) -> None:
        if self._last is not None and given[0] is self._last[0]:
            _correct(norm, *self._last)


def _correct(norm: nn.BatchNorm2d, found: Tensor, wanted: Tensor) -> None:
    """Have a teacher's norm do to `found` what it does to `wanted`, in mean and variance."""
    over = (0, 2, 3)
    (var, mean), (var_wanted, mean_wanted) = (
        torch.var_mean(maps, over) for maps in (found, wanted)
    )
    scale = var / var_wanted.clamp_min(_TINY)
    state = norm.state_dict()
    state["running_mean"] = mean + (state["running_mean"] - mean_wanted) * scale.sqrt()
    state["running_var"] = state["running_var"] * scale
    norm.load_state_dict(state)


def _replaced(student: nn.Module, teacher: nn.Module) -> _Pairs:
    """Separable convolutions, and what they stand in for, by name."""
    theirs = dict(teacher.named_modules())
    return {
        name: (made, conv)
        for name, made in student.named_modules()
        if isinstance(made, SeparableConv)
        and isinstance(conv := theirs.get(name), nn.Conv2d)
        and made.stands_for(conv)
    }
