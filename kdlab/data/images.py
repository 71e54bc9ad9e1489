"""The base of all data sets: decoded once, kept as uint8, shared by all processes.

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
from kdlab.config.kept import kept, key_of
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

Notify = Callable[[str], None]  # one line for the user
PHOTO_SIZE = 96  # pixels of a side, where nothing is said: what a CPU trains on in minutes
PHOTO_VIEWS: Mapping[str, object] = {"flip": True, "resized_crop": 0.35}
PIXELS = 3  # raise when a view changes for the same set: caches of labels depend on it
# Size of a side -> fields of a set as a model was made for: crop_pct, interpolation and so on.
Configuration = Callable[[int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Decoded:
    inputs: NDArray[np.uint8]  # (N, C, H, W)
    labels: NDArray[np.int64]  # (N,)
    split: NDArray[np.uint8]  # (N,) TRAIN, VALIDATION or TEST
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _DecodedMeta:
    """What stands beside the arrays of a set in its folder."""

    classes: tuple[str, ...]
    digest: str


class ShownImages(Protocol):
    """The images of a set, as they are shown without augmentation: an array, or decoded now."""

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
    # Views take longer than a message: who has others to serve makes them in a thread.
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

    def here(self) -> float:
        """Share of the images that lie on this machine, 0 to 1; an estimate."""
        return 1.0

    @property
    def ids_below(self) -> int:
        """All ids of samples are smaller."""
        return len(self.labels) * (COPIES if self.sampling.active else 1)

    def labelled_only(self) -> Self:
        """The same where all of it is labelled; else what labels alone can teach with.

        As many images are drawn in an epoch as before, of those with a label alone.
        """
        if not self.unlabelled:
            return self
        return replace(self, sampling=replace(self.sampling, repeats=1, labelled_only=True))

    @property
    def unlabelled(self) -> int:
        """Training images without a label: soft labels alone teach them."""
        return int((self.labels[self.train] == NO_LABEL).sum())

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of these samples: an id may be another copy of a row (sampling.py)."""
        return ids % len(self.labels) if self.sampling.active else ids

    def views(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """(n, C, H, W) augmented training views of these samples in this epoch.

        With `out` they are written there, without a copy between where nothing is changed.
        """
        how = self.mixing(ids, epoch)
        if how is None:
            return self.unmixed(ids, epoch, out)
        own = self.unmixed(ids, epoch, out)
        mix(own, self.unmixed(how.partners, epoch), how)
        return own

    def mixing(self, ids: NDArray[np.int64], epoch: int) -> Mixing | None:
        """What is mixed into these views; None: nothing ever is."""
        if not self.augment.mixes:
            return None
        how = self.augment
        return mixing(ids, epoch, self.train, self.shape[1:], how.seed, how.mix_rates)

    @abstractmethod
    def unmixed(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Views before two of them are mixed, in memory of their own."""

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Views of each batch; where making them takes long, before they are asked for."""
        return (self.views(ids, epoch) for ids in batches)

    def shown_ahead(
        self, batches: Iterable[NDArray[np.int64]]
    ) -> Iterator[NDArray[np.uint8]]:
        """The same without augmentation."""
        return (self.inputs[ids] for ids in batches)


@dataclass(frozen=True, slots=True)
class DecodedData(ImageData):
    """All of it as one array in host memory, read-only."""

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
    """What every data set can be told. Nothing is ever chosen on `test`.

    validation_share: of the training samples, class by class, when the set brings no
        validation split of its own.
    train_samples, test_samples: use only so many of them, class by class; null is all.
    labels_per_class: so many training images of each class keep their label; the soft labels of a
        teacher alone teach the others. null is all.
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
    def short_form(cls, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A path or URL alone: photos in it, with the augmentation that photos want."""
        place = str(given["type"])
        kind = kind_of(place)
        if kind is None:
            return None
        photos = {"size": PHOTO_SIZE, "augment": PHOTO_VIEWS}
        return {**photos, **given, "type": kind, "root": place}

    @abstractmethod
    def identity(self) -> str:
        """What the pixels depend on; finds missing files early.

        Raises:
            DataError: the set is not where it should be; names the path.
        """

    def shown_as(self, configuration: Configuration) -> Self:
        """This set with what it leaves to a model's own configuration.

        Args:
            configuration: is asked only if something is left to it.
        """
        return self

    def notes(self, data: ImageData) -> list[str]:
        """What is known of a set beside its images, a line for each; `data` is the set."""
        return []

    def shown(self) -> InputSpec | None:
        """How its images are shown; None: they are arrays of one size."""
        return None

    @abstractmethod
    def expected_bytes(self) -> int:
        """Size in host memory, known before anything is decoded."""

    @abstractmethod
    def decode(self, say: Notify) -> Decoded: ...

    def load(self, say: Notify = lambda line: None, *, verify: bool = False) -> ImageData:
        """The set, decoded now if it was not before, or if what is there is damaged.

        Args:
            say: gets a line when it takes long, or when damage was found.
            verify: check the hashes of the decoded files, and not their sizes alone: once a run.

        Raises:
            DataError: missing, empty or damaged files, or no room for it.
        """
        folder = home() / "data" / key_of(f"{self.component}\n{self.identity()}")
        return kept(
            folder,
            find=lambda: (
                self._open(folder) if damage(folder, hashes=verify) is None else None
            ),
            make=lambda: self._decoded_into(folder, say),
        )

    def _decoded_into(self, folder: Path, say: Notify) -> ImageData:
        if sealed(folder):
            say(
                f"The decoded images of {self.component} in {folder} are damaged "
                f"({damage(folder, hashes=True)}); they are decoded again."
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
        if shown.interpolation != "bilinear":  # crops are resized by it
            digest = key_of(f"{digest} {shown.interpolation}")
        labels = np.load(folder / "labels.npy")
        parts = self._split(labels, np.load(folder / "split.npy"))
        return DecodedData(
            str(self.component),
            inputs.view(np.ndarray),  # plain array: indexing a memmap is slower
            self._few(labels, parts[0]),
            meta.classes,
            *parts,
            digest=digest,
            augment=self.augment,
            sampling=self.sampling,
            shown=shown,
        )

    def _shares(self) -> tuple[float, float]:
        """Parts of the training samples for validation and test, where the set brings none."""
        return self.validation_share, 0.0

    def _few(
        self, labels: NDArray[np.int64], train: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """All labels but those of training images that are to do without."""
        if self.labels_per_class is None:
            return labels
        few = labels.copy()
        mixed = permutation(self.split_seed + 3, 0, train)
        for label in np.unique(labels[train]):
            own = mixed[labels[mixed] == label]
            few[own[self.labels_per_class :]] = NO_LABEL
        return few

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
