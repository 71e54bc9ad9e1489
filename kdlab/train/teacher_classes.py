"""A teacher's classes by name: its last layer is cut to the data's classes, in the data's order.

The result is an ordinary network of the data's classes in its own file, so code that loads it, in
any process, for logits, hidden states or features, needs no special case.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from kdlab.config.folders import located, nearest
from kdlab.config.home import home, locked, read_plain
from kdlab.config.seal import file_sha256
from kdlab.data.images import ImageData
from kdlab.errors import ModelError, WeightsError
from kdlab.models.headless import last_linear
from kdlab.models.model import ModelSpec, Normalised, export, load_weights, read_card

Classes = (
    tuple[str, ...] | Mapping[str, str] | str
)  # its names in order, renamed ones, a file
_HOW = (
    "teacher.classes says what each of its outputs is: a list of names in their order, a file with "
    "a name a line, or a mapping of names to the data's, such as {tabby: cat}."
)


def named(
    classes: Classes | None, outputs: tuple[str, ...], data: ImageData
) -> tuple[str, ...] | None:
    """Name each output by the data's classes; None where their names are unknown.

    Args:
        classes: `teacher.classes`.
        outputs: known names of its outputs; may be empty.
        data: of the experiment.

    Raises:
        ModelError: classes of the data are missing or doubled, or a name is unknown.
    """
    names = outputs or data.classes
    if isinstance(classes, Mapping):
        for name in set(classes) - set(names):
            raise ModelError(f"teacher.classes has {name!r}.{nearest(name, names)} {_HOW}")
        names = tuple(classes.get(name, name) for name in names)
    elif classes is not None:
        names = _lines(classes) if isinstance(classes, str) else classes
    elif not set(data.classes) <= set(outputs):
        return None  # equal classes may be words there and numbers here
    lacking = [name for name in data.classes if names.count(name) != 1]
    for name in lacking:
        raise ModelError(
            f"{len(lacking)} of the {len(data.classes)} classes of {data.name} are not once among "
            f"the teacher's {len(names)}, first {name!r}.{nearest(name, names)} {_HOW}"
        )
    return names


def _lines(path: str) -> tuple[str, ...]:
    try:
        text = read_plain(Path(located(path)).expanduser(), 1 << 24).decode()
    except (OSError, ValueError) as error:
        raise ModelError(
            f"teacher.classes is {path!r}, no file of names: {error}"
        ) from error
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def names_beside(weights: Path) -> tuple[str, ...]:
    """Read the names of the outputs from kdlab's card beside a weights file, if it has them."""
    try:
        return tuple(read_card(weights).get("classes", ()))
    except WeightsError:
        return ()


def cut_to(model: Normalised, names: tuple[str, ...], data: ImageData) -> None:
    """Cut the outputs of a network to the data's classes, in place.

    Raises:
        ModelError: its last layer is not linear.
    """
    views = torch.zeros((2, *data.shape), dtype=torch.uint8)
    head = model.net.get_submodule(
        last_linear(model, views, "teacher.classes names outputs")
    )
    assert isinstance(head, nn.Linear)
    rows = [names.index(name) for name in data.classes]
    head.weight = nn.Parameter(head.weight[rows].detach())
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias[rows].detach())
    head.out_features = model.num_classes = len(rows)


def cut(spec: ModelSpec, weights: Path, names: tuple[str, ...], data: ImageData) -> Path:
    """Return the file of a teacher that is cut to the data's classes; it is written once.

    Args:
        spec: of the uncut network.
        weights: its file.
        names: of its outputs.
        data: of the experiment.
    """
    parts = [spec.to_dict(), file_sha256(weights), names, data.classes, data.shape[0]]
    text = json.dumps(parts, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = home() / "teachers" / "cut" / f"{key}.safetensors"
    with locked(path.with_suffix(".lock")), torch.random.fork_rng():
        if not path.with_suffix(".json").is_file():  # written last
            model = spec.without_weights().build(len(names), data.shape[0])
            load_weights(model.net, weights)
            cut_to(model, names, data)
            export(model, spec, path, data)
    return path
