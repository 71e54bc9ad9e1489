"""Teachers on demand: a card names model, data and recipe; the weights are trained once.

A teacher is stored under the hash of everything it depends on, so equal cards share one file, and
a changed recipe is another teacher.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from kdlab.codec import Amount, to_builtins
from kdlab.config import Range, register
from kdlab.config.folders import located
from kdlab.config.home import find_as, home, locked, write_json
from kdlab.config.seal import file_sha256
from kdlab.config.spec import POSITIVE, Spec
from kdlab.data.images import DataSpec, ImageData
from kdlab.data.samples import planned
from kdlab.errors import Fault, RunStopped, TeacherRefused
from kdlab.events.event import Emit, discard_event
from kdlab.events.general import Note
from kdlab.events.runs import TeacherReady, TeacherTraining
from kdlab.models.bare import bare_file
from kdlab.models.ensemble import Combination, CombinedBy, combined
from kdlab.models.headless import last_linear
from kdlab.models.model import ModelSpec, Normalised, export, load_weights
from kdlab.models.pixel_mean import fit_pixel_mean
from kdlab.models.shrunk import ShrunkModel
from kdlab.soft_labels.none import NoTeacherSource
from kdlab.soft_labels.source import LoadedTeacher
from kdlab.train.evaluate import evaluate
from kdlab.train.linear_probe import fit_last_layer
from kdlab.train.recipe import Recipe
from kdlab.train.student import StudentLoop
from kdlab.train.student_job import StudentJob
from kdlab.train.teacher_classes import cut, named, names_beside
from kdlab.train.teacher_hash import hash_of, network_key

_FACTS = "facts.json"


@register("train/teacher")
@dataclass(frozen=True, kw_only=True)
class TeacherSpec(Spec):
    """A teacher: model, the data it is trained on, and the recipe that trains it.

    model: with `weights` (and sha256) it is used unchanged and nothing is trained.
    data, recipe: needed to train it when it has no weights; null is the experiment's.
    backbone: a weights file of the same network with another last layer, where training or
        probing begins: a foundation model, or one of other classes.
    headless: a foundation model without a last layer: its weights are used unchanged, and only its
        features teach (`features`).
    probe: only the last layer is trained, in seconds, by logistic regression on the hidden states
        of the training images. For `pretrained: true`, or a `backbone`.
    min_top1: percent on validation; a teacher below it is refused.
    weight: of this teacher's answers when it is one of several (an ensemble).
    name: for `features` of several teachers; null is the last part of its network's type.
    size: pixels of a side of its input, to which views are resized (models/shrunk); null keeps
        their size.
    classes: names of its outputs, where they are not the data's classes in the data's order: a
        list, a file with a name per line, or a mapping of its names to the data's. Classes that
        the data lacks are cut off.
    """

    model: ModelSpec
    data: DataSpec | None = None
    recipe: Recipe | None = None
    seed: int = 0
    backbone: str | None = None
    headless: bool = False
    probe: bool = False
    min_top1: Annotated[float, Range(ge=0, le=100)] | None = None
    weight: Annotated[float, POSITIVE] = 1.0
    classes: tuple[str, ...] | Mapping[str, str] | str | None = None
    name: str | None = None
    size: Annotated[int, Range(ge=1, le=4096)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            object.__setattr__(self, "model", ShrunkModel.from_model(self.model, self.size))
            object.__setattr__(self, "size", None)  # now in the network
        if self.data is not None:
            shown = self.data.shown_as(self.model.evaluation)
            object.__setattr__(self, "data", shown)

    @classmethod
    def short_form(cls, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Read a model alone as a teacher that is trained by the experiment's recipe."""
        own_fields = {k: v for k, v in config.items() if k in cls.__dataclass_fields__}
        model = {k: v for k, v in config.items() if k not in own_fields}
        return {"type": cls.component, "model": model} | own_fields

    @property
    def called(self) -> str:
        """Name for `features`, where there are several teachers."""
        network = self.model
        while isinstance(network, ShrunkModel):
            network = network.model
        return self.name or str(network.to_dict()["type"]).rpartition("/")[2]

    @property
    def trainable(self) -> bool:
        """True where its spec has weights, or data and a way to train."""
        if self.model.weights is not None or self.headless:
            return True
        return self.data is not None and (self.probe or self.recipe is not None)

    def cross_faults(self) -> Iterator[Fault]:
        for name in ("backbone", "probe", "min_top1", "classes") if self.headless else ():
            if getattr(self, name):
                yield Fault(name, "is set, and headless is true: it knows no classes")
        if self.model.weights is None:
            return
        for name in ("backbone", "probe"):
            if getattr(self, name):
                yield Fault(name, "is set, and model.weights are taken as they are")

    def in_experiment(self, data: DataSpec, recipe: Recipe) -> "TeacherSpec":
        """Return this teacher, with the experiment's data and recipe where it lacks them."""
        if self.trainable:
            return self
        return replace(self, data=self.data or data, recipe=self.recipe or recipe)


@dataclass(frozen=True, slots=True)
class PreparedTeacher:
    """A teacher whose weights are on disk."""

    spec: TeacherSpec
    weights: Path
    sha256: str
    top1: float | None  # percent on test; None when it came with foreign weights

    @property
    def fingerprint(self) -> str:
        """16 hex digits of the weights and of the network that has them."""
        return network_key(self.spec.model, self.sha256)

    def build(self, num_classes: int, in_chans: int) -> Normalised:
        """Build the frozen model in eval mode, on the CPU."""
        classes = 0 if self.spec.headless else num_classes
        model = self.spec.model.without_weights().build(classes, in_chans)
        load_weights(model.net, self.weights, self.sha256)
        return frozen(model)


@dataclass(frozen=True, slots=True)
class PreparedTeachers:
    """One teacher or an ensemble, with all weights on disk."""

    members: tuple[PreparedTeacher, ...]
    by: CombinedBy = "probabilities"
    # Weights of each member by class, from validation; None: those of their cards
    validated: tuple[tuple[float, ...], ...] | None = None

    @property
    def knowing(self) -> Self:
        """The members that classify, without headless ones."""
        known = tuple(one for one in self.members if not one.spec.headless)
        return replace(self, members=known)

    @property
    def combination(self) -> Combination:
        if self.validated is not None:
            return Combination(self.validated, self.by)
        return replace(
            Combination.from_weights([m.spec.weight for m in self.knowing.members]),
            by=self.by,
        )

    @property
    def is_plain(self) -> bool:
        """True for one teacher, or the mean of probabilities by the cards' weights."""
        plainly = self.by == "probabilities" and self.validated is None
        return plainly or len(self.members) == 1

    @property
    def fingerprint(self) -> str:
        """16 hex digits of all members and of their shares in an ensemble."""
        if len(self.members) == 1:
            return self.members[0].fingerprint
        parts = [f"{m.fingerprint}*{m.spec.weight:g}" for m in self.members]
        if not self.is_plain:
            parts.append(repr(self.combination))
        return hashlib.sha256("+".join(parts).encode()).hexdigest()[:16]

    def build(self, num_classes: int, in_chans: int) -> nn.Module:
        """Build the frozen model in eval mode, on the CPU."""
        models = [member.build(num_classes, in_chans) for member in self.members]
        return frozen(combined(models, self.combination))

    def load(self, data: ImageData, device: str) -> LoadedTeacher:
        model = self.build(len(data.classes), data.shape[0])
        return loaded(model, self.fingerprint, device)


def loaded(model: nn.Module, fingerprint: str, device: str) -> LoadedTeacher:
    """Wrap a frozen model for a source in this process."""
    model = model.to(device)

    @torch.inference_mode()
    def infer(views: Tensor) -> Tensor:
        logits: Tensor = model(views.to(device, non_blocking=True))
        return logits.float().cpu()

    return LoadedTeacher(infer, fingerprint)


M = TypeVar("M", bound=nn.Module)


def frozen(model: M) -> M:
    model.eval()
    return model.requires_grad_(requires_grad=False)


def recipe_hash(spec: TeacherSpec) -> str:
    """Hash everything that the weights depend on; the cadence of logs and saves is excluded."""
    return hash_of(spec.to_dict(), spec.data.identity() if spec.data else "")


def begin_with(
    spec: TeacherSpec, model: Normalised, data: ImageData, emit: Emit = discard_event
) -> None:
    """Load the backbone, if there is one, into a new model.

    Raises:
        WeightsError: the file is missing, damaged, or of another network.
    """
    if spec.backbone is not None:
        views = torch.from_numpy(data.inputs[data.train[:2]])
        head = last_linear(model, views, "teacher.backbone is set")
        load_weights(model.net, Path(located(spec.backbone)).expanduser(), but=[head])
    if origin := spec.model.origin():
        emit(Note(message=f"the teacher begins with the weights of {origin}"))


def prepared(spec: TeacherSpec) -> PreparedTeacher | None:
    """Return the teacher if its weights are on this machine; it is not trained here."""
    if spec.model.weights is not None and not spec.headless:
        path = spec.model.weights_path()
        return (
            PreparedTeacher(spec, path, file_sha256(path), None) if path.is_file() else None
        )
    weights, known = _folder(spec) / "best.safetensors", _Trained.read(_folder(spec))
    if known is None or not weights.is_file():
        return None
    return PreparedTeacher(spec, weights, file_sha256(weights), known.test_top1)


def _folder(spec: TeacherSpec) -> Path:
    return home() / "teachers" / recipe_hash(spec)


def _fitted(
    spec: TeacherSpec, weights: Path, top1: float | None, data: ImageData | None
) -> PreparedTeacher:
    """Cut the teacher to the classes of this data, in its order; without data keep them."""
    if data is not None:
        names = named(spec.classes, names_beside(weights), data)
        if names is not None and names != data.classes:
            weights, top1 = cut(spec.model, weights, names, data), None
    return PreparedTeacher(spec, weights, file_sha256(weights), top1)


def prepare(
    spec: TeacherSpec,
    emit: Emit,
    stop: Callable[[], bool] = lambda: False,
    data: ImageData | None = None,
) -> PreparedTeacher:
    """Return the teacher with its weights on disk; train it first if needed.

    Args:
        spec: of the teacher.
        emit: for the events of its training.
        stop: returns True once the user asked to stop.
        data: its outputs are cut to the classes of this data; None keeps them.

    Raises:
        TeacherRefused: its accuracy is below `min_top1`.
        RunStopped: the user asked for it; training continues from there the next time.
    """
    if spec.headless:
        path = bare_file(spec.model, 3 if data is None else data.shape[0])
        return PreparedTeacher(spec, path, file_sha256(path), None)
    if spec.model.weights is not None:
        return _fitted(spec, spec.model.weights_path(), None, data)
    folder = _folder(spec)

    def wait() -> None:
        if stop():
            raise RunStopped(
                "stopped by the user while another run trains the same teacher"
            )

    with locked(folder.with_suffix(".lock"), wait):
        known = _Trained.read(folder) or _train(spec, folder, emit, stop)
    if spec.min_top1 is not None and known.validation_top1 < spec.min_top1:
        raise TeacherRefused(
            f"The teacher reached {known.validation_top1:.2f} % on validation, its card "
            f"demands {spec.min_top1:g} %. Train it longer (recipe.epochs) or lower "
            f"min_top1. Its files are in {folder}."
        )
    weights = folder / "best.safetensors"
    emit(TeacherReady(folder=str(folder), **to_builtins(known)))
    return _fitted(spec, weights, known.test_top1, data)


@dataclass(frozen=True, slots=True)
class _Trained:
    """Facts of a teacher in facts.json; accuracies in percent, of the saved weights."""

    validation_top1: float
    test_top1: float
    test_top5: float
    epoch: int  # of the weights
    train_seconds: Amount
    samples_per_second: Amount
    test: Mapping[str, object]  # accuracy on the test images

    @classmethod
    def read(cls, folder: Path) -> "_Trained | None":
        cure = "Delete its folder, and the teacher is trained again."
        return find_as(cls, folder / _FACTS, cure)

    def write(self, folder: Path) -> Self:
        """Write the facts, last: their presence means that the teacher is complete."""
        write_json(folder / _FACTS, to_builtins(self))
        return self


def _train(
    spec: TeacherSpec, folder: Path, emit: Emit, stop: Callable[[], bool]
) -> _Trained:
    assert spec.data is not None
    if spec.probe:
        return _probe(spec, folder, emit)
    assert spec.recipe is not None
    recipe = spec.recipe
    data = spec.data.load(lambda line: emit(Note(message=line)), verify=True)
    emit(TeacherTraining(folder=str(folder), epochs=recipe.epochs))
    torch.manual_seed(spec.seed)
    samples = planned(
        data.labelled_only(),
        spec.data.to_dict(),
        batch=recipe.batch,
        seed=spec.seed,
        epochs=recipe.epochs,
    )
    model = spec.model.build(len(data.classes), data.shape[0])
    fit_pixel_mean(model, data.inputs, data.train)
    begin_with(spec, model, data, emit)
    job = StudentJob(
        recipe=recipe,
        model_spec=spec.model,
        model=model,
        samples=samples,
        loss=None,
        seed=spec.seed,
        folder=folder,
        spec_hash=recipe_hash(spec),
        emit=emit,
        stop=stop,
    )
    loop = StudentLoop(job)
    loop.resume()
    result = loop.run(NoTeacherSource(samples))
    test, rate = result.best, result.samples_per_second
    more = result.best_epoch, result.train_seconds, rate, asdict(test)
    return _Trained(result.validation_best, test.top1, test.top5, *more).write(folder)


def _probe(spec: TeacherSpec, folder: Path, emit: Emit) -> _Trained:
    """Fit the last layer only."""
    assert spec.data is not None
    recipe = spec.recipe or Recipe()
    data = spec.data.load(lambda line: emit(Note(message=line)), verify=True)
    torch.manual_seed(spec.seed)
    model = spec.model.build(len(data.classes), data.shape[0])
    fit_pixel_mean(model, data.inputs, data.train)
    begin_with(spec, model, data, emit)
    begin, batch = time.perf_counter(), recipe.evaluate_batch
    count = fit_last_layer(model, data, recipe.chosen_device(), batch)
    seconds = time.perf_counter() - begin
    emit(Note(message=f"the teacher's last layer was fitted to {count:,} images"))
    validation = evaluate(model, data, data.validation, batch)
    test = evaluate(model, data, data.test, batch)
    path = folder / "best.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    export(model.cpu(), spec.model, path, data, test_top1=test.top1)
    more = 0, seconds, count / max(1e-9, seconds), asdict(test)
    return _Trained(validation.top1, test.top1, test.top5, *more).write(folder)
