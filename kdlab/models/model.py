"""The base of all models: architecture, weights, and the normalisation it was made for."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kdlab.codec import MessageError, from_builtins
from kdlab.config.folders import located
from kdlab.config.home import read_object, write_json, write_whole
from kdlab.config.seal import file_sha256
from kdlab.config.spec import Range, Spec
from kdlab.errors import ModelError, NotFoundError, WeightsError
from kdlab.models.tensor_files import read_tensors

Statistics = tuple[Sequence[float], Sequence[float]]  # mean and std per channel, of 0..1
_MOST_CLASSES, _MOST_CHANNELS = 1_000_000, 1024
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Shown(Protocol):
    """What the input of a model is made from; a data set is such."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def shown(self) -> Spec: ...  # how an image becomes the input: size, channels and so on


class Normalised(nn.Module):
    """uint8 views in, class scores out: each model carries its own normalisation.

    So a teacher and a student with different statistics see the same view, and views
    travel as uint8.

    anew: what of the file with its weights did not fit, and begins afresh; in words.
    """

    mean: Tensor
    std: Tensor
    anew = ""

    def __init__(
        self, net: nn.Module, mean: Sequence[float], std: Sequence[float], num_classes: int
    ) -> None:
        super().__init__()
        self.net, self.num_classes = net, num_classes
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1) * 255)

    def forward(self, views: Tensor) -> Tensor:
        """(N, C, H, W) uint8 -> (N, classes) logits."""
        return self.net((views.to(self.mean.dtype) - self.mean) / self.std)


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Spec, ABC):
    """What every model can be told.

    weights: a local .safetensors, or .pt/.pth holding plain tensors; null starts afresh.
    sha256: of the weights file; the model is refused when it differs.
    mean, std: per channel on the 0..1 scale; null is what the model was made for.
    """

    weights: str | None = None
    sha256: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[Annotated[float, Range(gt=0)], ...] | None = None

    @classmethod
    def short_form(cls, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A plain name is one of timm's: `resnet18` is `timm/resnet18`."""
        name = str(given["type"])
        return None if "/" in name else {**given, "type": f"timm/{name}"}

    @abstractmethod
    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        """The bare network with fresh weights.

        Raises:
            ModelError: there is no such network.
        """

    statistics: ClassVar[Statistics] = ((0.5,), (0.5,))
    trained_by: ClassVar[str | None] = None  # the only method that can; None is any

    @property
    def inside(self) -> "ModelSpec | None":
        """The network that this one is made of: images are prepared as for that."""
        return next(
            (one for one in self.fields().values() if isinstance(one, ModelSpec)), None
        )

    def normalisation(self) -> Statistics:
        """Statistics the network was made for; kdlab's own networks take -1..1."""
        if self.inside is None:
            return self.statistics
        mean, std = self.inside.normalisation()
        return self.inside.mean or mean, self.inside.std or std

    def origin(self) -> str | None:
        """Where the weights come from that it begins with; None: it has none."""
        if self.weights is not None or self.inside is None:
            return self.weights
        # A file of the network inside is read by who says so (`holders`).
        return None if self.inside.weights is not None else self.inside.origin()

    def holders(self, net: nn.Module) -> "list[tuple[ModelSpec, nn.Module]]":
        """Who may name a file of weights, and the part of its network that those are of."""
        return [(self, net)]

    def evaluation(self, size: int) -> Mapping[str, Any]:
        """How an image is shown in a test at this size, where the network was made for that.

        These fields of `data`: crop_pct, interpolation, crop_mode, fill.
        """
        return {} if self.inside is None else self.inside.evaluation(size)

    def without_weights(self) -> "ModelSpec":
        """The same network with fresh weights: nothing is read and nothing fetched."""
        values: dict[str, Any] = {
            name: own.without_weights() if isinstance(own, ModelSpec) else own
            for name, own in self.fields().items()
        }
        if "pretrained" in values:
            values["pretrained"] = False
        return type(self)(**values | {"weights": None, "sha256": None})

    def weights_path(self) -> Path:
        """The path of the file that `weights` names.

        Raises:
            WeightsError: it names none, or one that kdlab does not bring.
        """
        try:
            return Path(located(self.weights or "")).expanduser()
        except NotFoundError as error:
            raise WeightsError(str(error)) from error

    def build(self, num_classes: int, in_chans: int, *, refit: bool = False) -> Normalised:
        """The network with its weights; with `refit` a last layer of other classes begins afresh.

        Raises:
            ModelError: no such network.
            WeightsError: the file is missing, damaged, has another hash, or fits not.
        """
        net = self.architecture(num_classes, in_chans)
        anew = [
            load_weights(part, spec.weights_path(), spec.sha256, refit=refit)
            for spec, part in self.holders(net)
            if spec.weights is not None
        ]
        mean, std = self.normalisation()
        mean, std = (
            _per_channel(s, in_chans) for s in (self.mean or mean, self.std or std)
        )
        made = Normalised(net, mean, std, num_classes)
        made.anew = "".join(anew)
        return made


def _per_channel(values: Sequence[float], channels: int) -> list[float]:
    """One number per channel; a grey image gets the mean of a colour model's three."""
    if len(values) == channels:
        return list(values)
    return [sum(values) / len(values)] * channels


def load_weights(
    net: nn.Module,
    path: Path,
    sha256: str | None = None,
    *,
    but: Sequence[str] = (),
    refit: bool = False,
) -> str:
    """Strictly load a file of plain tensors into a network; what was not loaded, in words.

    Args:
        net: the bare network.
        path: of the file.
        sha256: that it must have.
        but: modules whose tensors stay as they are, whatever the file has.
        refit: so does a last layer of another number of classes.

    Raises:
        WeightsError: missing, other hash, unreadable, or names and shapes that differ.
    """
    if not path.is_file():
        raise WeightsError(f"There is no weights file at {path}.")
    if sha256 is not None and (found := file_sha256(path)) != sha256:
        raise WeightsError(
            f"{path} has sha256 {found}, expected {sha256}. It was not loaded: another "
            "file, or a damaged download. Fetch it again, or correct the hash in the card."
        )
    state = read_tensors(path)
    try:
        state = {k.removeprefix("net."): v for k, v in state.items()}
        state = {k: v for k, v in state.items() if k not in ("mean", "std")}
        fresh, anew = net.state_dict(), ""
        if refit and (but := _other_heads(fresh, state)):
            sizes = [len(tensors[f"{but[0]}.weight"]) for tensors in (state, fresh)]
            anew = (
                "; its last layer ({}) begins afresh: {:,} classes there, {:,} here".format(
                    ", ".join(but), *sizes
                )
            )
        within = tuple(f"{name}." for name in but)
        state = {k: v for k, v in state.items() if not k.startswith(within)}
        state |= {k: v for k, v in fresh.items() if k.startswith(within)}
        net.load_state_dict(state)
        return anew
    except RuntimeError as error:
        why = (_difference(net.state_dict(), state) if state else "") or str(error)
        raise WeightsError(f"{path} does not fit {type(net).__name__}: {why}") from error
    except (ValueError, AttributeError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error


def _other_heads(network: Mapping[str, Tensor], file: Mapping[str, Tensor]) -> list[str]:
    """The last layers, where they alone differ, and in their number of classes alone."""
    differing = [k for k, v in network.items() if k in file and file[k].shape != v.shape]
    layers = sorted({k.rpartition(".")[0] for k in differing})
    apart = any(file[k].shape[1:] != network[k].shape[1:] for k in differing)
    classes = {
        (len(file[k]), len(network[k])) for k in differing
    }  # of several heads the same
    whole = all(f"{layer}.weight" in differing for layer in layers)
    if network.keys() != file.keys() or apart or len(classes) != 1 or not whole:
        return []
    return layers


def _difference(network: Mapping[str, Tensor], file: Mapping[str, Tensor]) -> str:
    """What a file lacks, has too much, or has in another shape: counts and first names."""
    other = [
        f"{k} {tuple(file[k].shape)} instead of {tuple(v.shape)}"
        for k, v in network.items()
        if k in file and file[k].shape != v.shape
    ]
    missing = [k for k in network if k not in file]
    foreign = [k for k in file if k not in network]
    parts = [
        f"{len(keys)} of {len(network)} tensors {what} ({_first(keys)})"
        for keys, what in ((missing, "missing"), (other, "of another shape"))
        if keys
    ]
    if foreign:
        parts.append(f"{len(foreign)} it does not know ({_first(foreign)})")
    if not parts:
        return ""
    hint = (
        "Name the network that it is of: it is another one, or was saved under other names."
    )
    if other and not missing and not foreign and len(other) <= 2:
        hint = "It was trained for another number of classes, or of channels."
    return f"{'; '.join(parts)}. {hint}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def export(
    model: Normalised, spec: ModelSpec, path: Path, data: Shown, **facts: object
) -> None:
    """The network alone as safetensors, loadable in plain timm or torchvision.

    A JSON file of the same name says what it is, how an image becomes its input, the names of
    its classes, and `facts`.
    """
    state = {k: v.detach().contiguous().cpu() for k, v in model.net.state_dict().items()}
    write_whole(path, lambda temporary: save_file(state, temporary))
    card = {
        "num_classes": model.num_classes,
        "in_chans": model.mean.shape[1],
        "model": spec.without_weights().to_dict(),
        "mean": (model.mean.flatten() / 255).tolist(),
        "std": (model.std.flatten() / 255).tolist(),
        "input": data.shown.to_dict(),
        "classes": list(data.classes),
        "sha256": file_sha256(path),
        **facts,
    }
    write_json(path.with_suffix(".json"), card)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentCard:
    """What each card has, of whoever wrote it; more may stand there."""

    num_classes: int
    in_chans: int
    model: dict[str, Any]
    mean: list[float]
    std: list[float]
    sha256: str
    classes: list[str] = field(default_factory=list)
    input: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, most in (("num_classes", _MOST_CLASSES), ("in_chans", _MOST_CHANNELS)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, not 1 to {most:,}")
        if self.classes and len(self.classes) != self.num_classes:
            raise ValueError(f"{len(self.classes)} names for {self.num_classes} classes")
        if not len(self.mean) == len(self.std) == self.in_chans:
            raise ValueError("mean and std are not of its channels")
        if not all(map(isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ValueError("mean and std are no numbers to normalise with")


def read_card(path: Path) -> dict[str, Any]:
    """The card beside an exported student.

    Raises:
        WeightsError: it is missing or damaged; says in what.
    """
    card = path.with_suffix(".json")
    try:
        found = read_object(card)
        from_builtins(StudentCard, found)
    except (OSError, ValueError, MessageError) as error:
        raise WeightsError(
            f"{card}, which says what the network beside it is, cannot be read: {error}. Export "
            "the student again."
        ) from error
    return found


def check_fit(
    model: nn.Module, shape: tuple[int, int, int], classes: int, who: str
) -> None:
    """One forward pass of two blank images, so that a misfit is found before a run.

    Raises:
        ModelError: the model cannot take the shape, or has another number of classes.
    """
    model.eval()
    device = next(model.parameters()).device
    try:
        with torch.inference_mode():
            scores = model(torch.zeros((2, *shape), dtype=torch.uint8, device=device))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ModelError(
            f"{who} cannot take images of {'×'.join(map(str, shape))}: {_said(error)}. Choose "
            "another size of the data (data.size) or another model; a transformer of timm takes "
            f"options={{img_size: {shape[1]}}}, most of its networks any size."
        ) from error
    if classes and tuple(scores.shape) != (2, classes):  # 0: it has no last layer
        raise ModelError(
            f"{who} answers with shape {tuple(scores.shape)} for two images; the data has "
            f"{classes} classes, so (2, {classes}) was expected. Its number of classes "
            "differs: choose a teacher of this data set, or set num_classes of its card."
        )
    model.train()


def _said(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """In eval mode while the block goes on, then in the mode that each was in."""
    modes = [m.training for m in modules]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.train(mode)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
