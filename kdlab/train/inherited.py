"""Initial weights of a student from a teacher of its family."""

from math import prod

import torch
from torch import Tensor

from kdlab.data.images import ImageData
from kdlab.data.splits import by_class
from kdlab.models.inherited import find_shared_layers, inherit_layers
from kdlab.models.model import Normalised

_OWN = 0.5  # share of a student's layers that a teacher of another family has by chance, at most
_FEW, _MANY, _VALUES = 16, 256, 2**21  # images that stand-ins are fitted to


def inherit(student: Normalised, teacher: Normalised, views: Tensor | None) -> bool:
    """Copy tensors of the same name and shape; separable convolutions begin as the nearest.

    Args:
        student: with weights that mean nothing yet.
        teacher: on the same device.
        views: `some_views` of the teacher's training images, which stand-ins are fitted to.
            None leaves stand-ins as they are.

    Returns:
        False, with nothing copied: most of the student's layers have no counterpart in the
        teacher, or all of them have, and nothing would be left to learn.
    """
    common = find_shared_layers(student.net, teacher.net)
    shared = len(common.same) + len(common.replaced)
    is_teacher = len(common.same) == len(teacher.net.state_dict()) == common.wanted
    if shared <= _OWN * common.wanted or is_teacher:
        return False
    if views is None:
        student.net.load_state_dict(common.same, strict=False)
    else:
        inherit_layers(student.net, teacher.net, views, common)
    return True


def some_views(model: Normalised, data: ImageData) -> Tensor:
    """(N, C, H, W) training images as the model's network takes them: the same each time.

    Every class in its share; fewer where images are large.
    """
    count = max(_FEW, min(_MANY, _VALUES // prod(data.shape)))
    rows = by_class(data.train, data.labels, count, 0)[0]
    images = torch.from_numpy(data.inputs[rows]).to(model.mean.device)
    return (images - model.mean) / model.std
