"""Base classes of data sets: decoded once to uint8 and shared by all processes.

A set is decoded into `<home>/data/<key>/` and memory-mapped from there, so the student,
its reader and every teacher on a host share one copy in memory (EDL-Dist 3.1: the
training data is cached in the host memory of each server).
"""

import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self

import numpy as np
import psutil
from numpy.typing import NDArray

from kdlab.codec import from_builtins, to_builtins
from kdlab.config.home import home
from kdlab.config.kept import key_of, load_or_create
from kdlab.config.seal import check, damage, sealed
from kdlab.config.spec import SHARE, Range, Spec
from kdlab.data.augment import Augment
from kdlab.data.counter_random import permutation
from kdlab.data.encoded.formats import kind_of
from kdlab.data.encoded.index import keep_arrays
from kdlab.data.mixing import Mixing, mix, mixing
from kdlab.data.sampling import COPIES, Sampling
from kdlab.data.shown import InputSpec
from kdlab.data.splits import NO_LABEL, by_class, completed
from kdlab.errors import DataError

Notify = Callable[[str], None]  # receives a line for the user
PHOTO_SIZE = 96  # default, pixels of a side: a CPU trains on these in minutes
PHOTO_VIEWS: Mapping[str, object] = {"flip": True, "resized_crop": 0.35}
PIXELS = 3  # raise when a view changes for the same set: caches of labels depend on it
# Size of a side -> fields of a set that a model was made for, such as crop_pct, interpolation.
Configuration = Callable[[int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Decoded:
    inputs: NDArray[np.uint8]  # (N, C, H, W)
    labels: NDArray[np.int64]  # (N,)
    split: NDArray[np.uint8]  # (N,) TRAIN, VALIDATION or TEST
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _DecodedMeta:
    """Facts of a decoded set, in the seal of its folder."""

    classes: tuple[str, ...]
    digest: str


class ShownImages(Protocol):
    """Images of a set without augmentation: an array, or decoded on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # (N, C, H, W)

    def __getitem__(self, rows: NDArray[Any], /) -> NDArray[np.uint8]: ...


@dataclass(frozen=True, slots=True)
class ImageData(ABC):
    """A data set. `train`, `validation`, `test` hold row numbers (ids)."""

    name: str
    inputs: ShownImages
    labels: NDArray[np.int64]  # (N,)
    classes: tuple[str, ...]
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    digest: str  # of pixels and labels, 16 hex digits
    augment: Augment
    shown: InputSpec  # how an image is shown without augmentation
    sampling: Sampling = Sampling()  # noqa: RUF009  # frozen
    # Views take long, so a server makes them in a thread.
    slow: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.inputs.shape
        return channels, height, width

    def __post_init__(self) -> None:
        weights = len(self.sampling.class_weights)
        if weights and weights != len(self.classes):
            raise DataError(
                f"sampling.class_weights has {weights} numbers, and {self.name} has "
                f"{len(self.classes)} classes."
            )

    def label_name(self, row: int) -> str:
        label = int(self.labels[row])
        return "no label" if label == NO_LABEL else self.classes[label]

    def local_share(self) -> float:
        """Share of the images that are on this machine, 0 to 1; an estimate."""
        return 1.0

    @property
    def ids_below(self) -> int:
        """Upper bound (exclusive) of all sample ids."""
        return len(self.labels) * (COPIES if self.sampling.active else 1)

    def labelled_only(self) -> Self:
        """This set with its labelled images alone; itself where every image has a label.

        An epoch has as many samples as before, drawn from the labelled images.
        """
        if not self.unlabelled:
            return self
        return replace(self, sampling=replace(self.sampling, repeats=1, labelled_only=True))

    @property
    def unlabelled(self) -> int:
        """Number of training images without a label, which soft labels alone teach."""
        return int((self.labels[self.train] == NO_LABEL).sum())

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of sample ids; an id may be a further copy of a row (sampling.py)."""
        return ids % len(self.labels) if self.sampling.active else ids

    def views(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(n, C, H, W) augmented training views of these samples in this epoch.

        With `out` they are written there, without another copy where nothing is augmented.
        """
        mixture = self.mixing(ids, epoch)
        if mixture is None:
            return self.unmixed(ids, epoch, out)
        views = self.unmixed(ids, epoch, out)
        mix(views, self.unmixed(mixture.partners, epoch), mixture)
        return views

    def mixing(self, ids: NDArray[np.int64], epoch: int) -> Mixing | None:
        """Partners and shares that are mixed into these views; None without mixup and CutMix."""
        if not self.augment.mixes:
            return None
        spec = self.augment
        return mixing(ids, epoch, self.train, self.shape[1:], spec.seed, spec.mix_rates)

    @abstractmethod
    def unmixed(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Views before mixing, in new memory or in `out`."""

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Views of each batch in order, computed ahead where they take long."""
        return (self.views(ids, epoch) for ids in batches)

    def shown_ahead(
        self, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.uint8]]:
        """Images of each batch without augmentation; computed ahead like `views_ahead`."""
        return (self.inputs[ids] for ids in batches)


@dataclass(frozen=True, slots=True)
class DecodedData(ImageData):
    """A data set as one read-only array in host memory."""

    inputs: NDArray[np.uint8]  # (N, C, H, W)

    def unmixed(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        rows = self.rows(ids)
        if out is None or self.augment.active:
            how = self.shown.interpolation
            views = self.augment.views(self.inputs[rows], ids, epoch, how)
            if out is None:
                return views
            out[...] = views
        else:
            # "clip" writes straight into `out`; ids are rows of this set, never outside.
            np.take(self.inputs, rows, axis=0, out=out, mode="clip")
        return out


@dataclass(frozen=True, kw_only=True)
class DataSpec(Spec, ABC):
    """Settings of every data set. Nothing is ever chosen on `test`.

    validation_share: of the training samples, class by class, where the set has no validation
        split.
    train_samples, test_samples: number of samples to use, class by class; null is all.
    labels_per_class: training images of each class that keep their label; the teacher's soft
        labels alone teach the others. null is all.
    """

    also: ClassVar[str] = "Nor is there a file or folder of images of this name."

    augment: Augment = field(default_factory=Augment)
    sampling: Sampling = field(default_factory=Sampling)
    validation_share: Annotated[float, SHARE] = 0.1
    split_seed: int = 0
    train_samples: Annotated[int, Range(ge=2)] | None = None
    test_samples: Annotated[int, Range(ge=1)] | None = None
    labels_per_class: Annotated[int, Range(ge=1)] | None = None

    @classmethod
    def short_form(cls, fields: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Expand a path or URL alone to its photos, with the default augmentation of photos."""
        root = str(fields["type"])
        kind = kind_of(root)
        if kind is None:
            return None
        photos = {"size": PHOTO_SIZE, "augment": PHOTO_VIEWS}
        return {**photos, **fields, "type": kind, "root": root}

    @abstractmethod
    def identity(self) -> str:
        """Everything the pixels depend on; finds missing files early.

        Raises:
            DataError: the set is missing; names the path.
        """

    def shown_as(self, configuration: Configuration) -> Self:
        """This set with its open fields filled from a model's configuration.

        Args:
            configuration: called only where a field is open.
        """
        return self

    def notes(self, data: ImageData) -> list[str]:
        """Lines about the loaded set `data`: its files and the origin of its splits."""
        return []

    def shown(self) -> InputSpec | None:
        """The transform to a model's input; None where images are arrays of one size."""
        return None

    @abstractmethod
    def expected_bytes(self) -> int:
        """Size in host memory in bytes, known before anything is decoded."""

    @abstractmethod
    def decode(self, say: Notify) -> Decoded: ...

    def load(self, say: Notify = lambda line: None, *, verify: bool = False) -> ImageData:
        """Load the set; decode it first where the decoded files are missing or damaged.

        Args:
            say: receives a line when decoding takes long, or when files are damaged.
            verify: check hashes of the decoded files and not sizes alone: once a run.

        Raises:
            DataError: missing, empty or damaged files, or too little memory or disk.
        """
        folder = home() / "data" / key_of(f"{self.component}\n{self.identity()}")
        return load_or_create(
            folder,
            load=lambda: (
                self._open(folder) if damage(folder, hashes=verify) is None else None
            ),
            create=lambda: self._decode_into(folder, say),
        )

    def _decode_into(self, folder: Path, say: Notify) -> ImageData:
        if sealed(folder):
            say(
                f"The decoded images of {self.component} in {folder} are damaged "
                f"({damage(folder, hashes=True)}); decoding them again."
            )
        need = self.expected_bytes()
        say(f"{self.component}: {_size(need)} as uint8 in host memory")
        self._refuse_if_too_large(need, folder)
        decoded = self.decode(say)
        if not len(decoded.labels):
            raise DataError(f"{self.component} holds no images.")
        digest = hashlib.sha256(np.ascontiguousarray(decoded.inputs).data)
        digest.update(decoded.labels.tobytes())
        meta = _DecodedMeta(decoded.classes, digest.hexdigest()[:16])
        labels, split = decoded.labels.astype(np.int64), decoded.split.astype(np.uint8)
        arrays: dict[str, NDArray[Any]] = {"labels": labels, "split": split}
        keep_arrays(folder, {"inputs": decoded.inputs} | arrays, to_builtins(meta))
        return self._open(folder)

    def _refuse_if_too_large(self, need: int, folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        memory = psutil.virtual_memory().available
        disk = shutil.disk_usage(folder.parent).free
        if need > 0.8 * memory or need > 0.9 * disk:
            raise DataError(
                f"{self.component} needs {_size(need)} as uint8; this machine has "
                f"{_size(memory)} of memory free (80 % may be used) and {_size(disk)} of "
                f"disk under {folder.parent}. Nothing was decoded. Use a smaller `size`, "
                "a machine with more memory, or move the cache with KDLAB_HOME."
            )

    def _open(self, folder: Path) -> ImageData:
        meta = from_builtins(_DecodedMeta, check(folder, hashes=False))
        inputs, digest = np.load(folder / "inputs.npy", mmap_mode="r"), meta.digest
        _, channels, size, _ = inputs.shape
        shown = self.shown() or InputSpec(size=size, channels=1 if channels == 1 else 3)
        if shown.interpolation != "bilinear":  # it resizes crops
            digest = key_of(f"{digest} {shown.interpolation}")
        labels = np.load(folder / "labels.npy")
        parts = self._split(labels, np.load(folder / "split.npy"))
        return DecodedData(
            str(self.component),
            inputs.view(np.ndarray),  # plain array: indexing a memmap is slower
            self._keep_few_labels(labels, parts[0]),
            meta.classes,
            *parts,
            digest=digest,
            augment=self.augment,
            sampling=self.sampling,
            shown=shown,
        )

    def _shares(self) -> tuple[float, float]:
        """Shares of the training samples for validation and test, where the set has none."""
        return self.validation_share, 0.0

    def _keep_few_labels(
        self, labels: NDArray[np.int64], train: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Labels with all but `labels_per_class` of each class removed in training images."""
        if self.labels_per_class is None:
            return labels
        remaining = labels.copy()
        shuffled = permutation(self.split_seed + 3, 0, train)
        for label in np.unique(labels[train]):
            rows = shuffled[labels[shuffled] == label]
            remaining[rows[self.labels_per_class :]] = NO_LABEL
        return remaining

    def _split(
        self, labels: NDArray[np.int64], split: NDArray[np.uint8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        train, validation, test = completed(labels, split, self._shares(), self.split_seed)
        if self.train_samples is not None and self.train_samples < len(train):
            train, _ = by_class(train, labels, self.train_samples, self.split_seed + 1)
        if self.test_samples is not None and self.test_samples < len(test):
            test, _ = by_class(test, labels, self.test_samples, self.split_seed + 2)
        return train, validation, test


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
