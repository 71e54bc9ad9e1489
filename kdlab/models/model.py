"""The base of all models: architecture, weights, and normalisation."""

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
    """The source of a model's inputs, such as a data set."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def shown(self) -> Spec: ...  # from image to input: size, channels and so on


class Normalised(nn.Module):
    """A network with its own normalisation: uint8 views in, class scores out.

    So a teacher and a student with different statistics see the same view, and views
    travel as uint8.

    anew: names the last layer that starts afresh because its weights did not fit, or is empty.
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
    """Options of every model.

    weights: a local .safetensors, or .pt/.pth holding plain tensors; null starts afresh.
    sha256: of the weights file; the model is refused when it differs.
    mean, std: per channel on the 0..1 scale; null takes the statistics of the model.
    """

    weights: str | None = None
    sha256: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[Annotated[float, Range(gt=0)], ...] | None = None

    @classmethod
    def short_form(cls, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Expand a plain name to one of timm's: `resnet18` is `timm/resnet18`."""
        name = str(values["type"])
        return None if "/" in name else {**values, "type": f"timm/{name}"}

    @abstractmethod
    def architecture(self, num_classes: int, in_chans: int) -> nn.Module:
        """Create the bare network with random weights.

        Raises:
            ModelError: there is no such network.
        """

    statistics: ClassVar[Statistics] = ((0.5,), (0.5,))
    trained_by: ClassVar[str | None] = None  # the only method that trains it; None is any

    @property
    def inside(self) -> "ModelSpec | None":
        """The network that this one wraps, whose preprocessing it takes; None is none."""
        return next(
            (one for one in self.fields().values() if isinstance(one, ModelSpec)), None
        )

    def normalisation(self) -> Statistics:
        """Return mean and std per channel of the inputs; kdlab's networks take -1..1."""
        if self.inside is None:
            return self.statistics
        mean, std = self.inside.normalisation()
        return self.inside.mean or mean, self.inside.std or std

    def origin(self) -> str | None:
        """Return the source of the first weights; None where they are random."""
        if self.weights is not None or self.inside is None:
            return self.weights
        # A file of the network inside belongs to that (`holders`).
        return None if self.inside.weights is not None else self.inside.origin()

    def holders(self, net: nn.Module) -> "list[tuple[ModelSpec, nn.Module]]":
        """Pair each spec that can name a weights file with its part of the network."""
        return [(self, net)]

    def evaluation(self, size: int) -> Mapping[str, Any]:
        """Return the test preprocessing that the network expects at this size.

        These fields of `data`: crop_pct, interpolation, crop_mode, fill.
        """
        return {} if self.inside is None else self.inside.evaluation(size)

    def without_weights(self) -> "ModelSpec":
        """Return a spec of this network with random weights: nothing is read or fetched."""
        values: dict[str, Any] = {
            name: value.without_weights() if isinstance(value, ModelSpec) else value
            for name, value in self.fields().items()
        }
        if "pretrained" in values:
            values["pretrained"] = False
        return type(self)(**values | {"weights": None, "sha256": None})

    def weights_path(self) -> Path:
        """Return the path of the file that `weights` names.

        Raises:
            WeightsError: kdlab has no file of this name.
        """
        try:
            return Path(located(self.weights or "")).expanduser()
        except NotFoundError as error:
            raise WeightsError(str(error)) from error

    def build(self, num_classes: int, in_chans: int, *, refit: bool = False) -> Normalised:
        """Create the network and load its weights.

        With `refit` a last layer of another number of classes keeps its random weights.

        Raises:
            ModelError: no such network.
            WeightsError: the file is missing, damaged, has another hash, or does not fit.
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
        model = Normalised(net, mean, std, num_classes)
        model.anew = "".join(anew)
        return model


def _per_channel(values: Sequence[float], channels: int) -> list[float]:
    """Fit statistics to the channels; a grey image gets the mean of a colour model's three."""
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
    """Load a file of plain tensors into a network; return a note on what was left out.

    Args:
        net: the bare network.
        path: of the file.
        sha256: the file's expected hash.
        but: modules whose tensors are not loaded.
        refit: do not load a last layer of another number of classes either.

    Raises:
        WeightsError: missing, other hash, unreadable, or names and shapes that differ.
    """
    if not path.is_file():
        raise WeightsError(f"There is no weights file at {path}.")
    if sha256 is not None and (digest := file_sha256(path)) != sha256:
        raise WeightsError(
            f"{path} has sha256 {digest}, expected {sha256}. It was not loaded: another "
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
    """Name the last layers, if a file differs in these alone, and in the number of classes."""
    differing = [k for k, v in network.items() if k in file and file[k].shape != v.shape]
    layers = sorted({k.rpartition(".")[0] for k in differing})
    apart = any(file[k].shape[1:] != network[k].shape[1:] for k in differing)
    classes = {
        (len(file[k]), len(network[k])) for k in differing
    }  # of several heads the same
    has_weights = all(f"{layer}.weight" in differing for layer in layers)
    if network.keys() != file.keys() or apart or len(classes) != 1 or not has_weights:
        return []
    return layers


def _difference(network: Mapping[str, Tensor], file: Mapping[str, Tensor]) -> str:
    """Describe tensors that are missing, unknown or of another shape: counts and first names."""
    differing = [
        f"{k} {tuple(file[k].shape)} instead of {tuple(v.shape)}"
        for k, v in network.items()
        if k in file and file[k].shape != v.shape
    ]
    missing = [k for k in network if k not in file]
    foreign = [k for k in file if k not in network]
    parts = [
        f"{len(keys)} of {len(network)} tensors {what} ({_first(keys)})"
        for keys, what in ((missing, "missing"), (differing, "of another shape"))
        if keys
    ]
    if foreign:
        parts.append(f"{len(foreign)} it does not know ({_first(foreign)})")
    if not parts:
        return ""
    hint = "It is of another network, or was saved under other names: name the network it is of."
    if differing and not missing and not foreign and len(differing) <= 2:
        hint = "It was trained for another number of classes, or of channels."
    return f"{'; '.join(parts)}. {hint}"


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def export(
    model: Normalised, spec: ModelSpec, path: Path, data: Shown, **facts: object
) -> None:
    """Write the network as safetensors, loadable in plain timm or torchvision.

    A JSON file (card) of the same name has its spec, its preprocessing, the names of its classes,
    and `facts`.
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
    """Required fields of an exported student's card; it may have more."""

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
    """Read the card of an exported student.

    Raises:
        WeightsError: it is missing or damaged.
    """
    card = path.with_suffix(".json")
    try:
        facts = read_object(card)
        from_builtins(StudentCard, facts)
    except (OSError, ValueError, MessageError) as error:
        raise WeightsError(
            f"{card}, the card of an exported student, cannot be read: {error}. Export the "
            "student again."
        ) from error
    return facts


def check_fit(
    model: nn.Module, shape: tuple[int, int, int], classes: int, who: str
) -> None:
    """Run two blank images through the model, to find a misfit before a run.

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
            f"{who} cannot take images of {'×'.join(map(str, shape))}: {_summary(error)}. Choose "
            "another size of the data (data.size) or another model; a transformer of timm takes "
            f"options={{img_size: {shape[1]}}}, most of its networks any size."
        ) from error
    if classes and tuple(scores.shape) != (2, classes):  # 0: it has no last layer
        raise ModelError(
            f"{who} answers two images with shape {tuple(scores.shape)}, and the data has "
            f"{classes} classes: (2, {classes}) was expected. Choose a teacher of this data set, "
            "or set num_classes of its card."
        )
    model.train()


def _summary(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Set modules to eval mode within the block, and restore the mode of each."""
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
