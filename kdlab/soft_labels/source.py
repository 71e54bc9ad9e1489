"""The protocol between a training loop and the source of its batches.

A loop requests an epoch and receives batches: views, true labels, soft labels. It does not know
where the soft labels were computed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdlab.changes.tunable import Tunable
from kdlab.config import Fault
from kdlab.config.spec import Spec
from kdlab.errors import TeacherRefused
from kdlab.events.event import Emit, discard_event


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step. Tensors are on the CPU, rows in the order of `ids`."""

    index: int  # place in the epoch's plan
    ids: NDArray[np.int64]  # (N,) int64 rows of the data set
    views: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,) int64
    # (N, classes) teacher logits, float; (N, D) where the source gives hidden states; None
    # without a teacher
    soft: Tensor | None
    mixed: "MixedLabels | None" = None  # views of two images each

    def refuse_nonsense(self) -> None:
        """Check the soft labels before training on them.

        Raises:
            TeacherRefused: some soft labels are NaN.
        """
        if self.soft is None or self.soft.device.type != "cpu":
            return  # a check would make the host wait for the device; the loss is checked later
        # NaN survives a sum: one check, for 256 by 1,000 a fourteenth of the time.
        if math.isnan(float(self.soft.sum())) and (bad := self.soft.isnan()).any():
            rows = self.ids[bad.any(1).cpu().numpy()].tolist()
            raise TeacherRefused(
                f"The teacher's logits of {len(rows)} of {len(self.ids)} images are NaN "
                f"(images {rows[:3]}): nothing can be learned from them. Check its weights, its "
                "normalisation (model.mean, model.std) and its precision."
            )


@dataclass(frozen=True, slots=True)
class MixedLabels:
    """Labels of the images that are mixed into views."""

    others: Tensor  # (N,) int64
    share: Tensor  # (N,) float32, weight of the batch's `labels`

    @classmethod
    def from_samples(
        cls, samples: "Samples", ids: NDArray[np.int64], view: int
    ) -> Self | None:
        """Labels of the partners of these samples; None without mixup and CutMix."""
        mixed = samples.mixed_labels(ids, view)
        return None if mixed is None else cls(*map(torch.from_numpy, mixed))


class SoftLabelSource(Protocol):
    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        """The batches of an epoch that are not in `done`, each exactly once.

        A batch's tensors may be overwritten when the next one is requested.
        """

    def figures(self) -> dict[str, float]:
        """Quantities to log beside the loss: volume, teachers, resends."""

    def close(self) -> None:
        """Stop everything the source started. May be called twice."""


class LocalSource:
    """Source whose batches are made in this process; it starts nothing that must be stopped.

    Args:
        samples: of the run.
        soft: soft labels of a batch and its view; None trains on the true labels alone.
        views: number of views of each sample; None is a new one in every epoch.
    """

    def __init__(
        self,
        samples: "Samples",
        soft: Callable[[Batch, int], Tensor] | None = None,
        views: int | None = None,
    ) -> None:
        self.samples, self.soft, self.views = samples, soft, views

    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        view = epoch if self.views is None else epoch % self.views
        batches = [b for b in enumerate(self.samples.batches(epoch)) if b[0] not in done]
        views_of_batches = self.samples.views_ahead([ids for _, ids in batches], view)
        for (index, ids), views in zip(batches, views_of_batches, strict=True):
            batch = Batch(
                index=index,
                ids=ids,
                views=torch.from_numpy(views),
                labels=torch.from_numpy(self.samples.labels(ids)),
                soft=None,
                mixed=MixedLabels.from_samples(self.samples, ids, view),
            )
            yield (
                batch if self.soft is None else replace(batch, soft=self.soft(batch, view))
            )

    def figures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return None


@runtime_checkable
class Steerable(Protocol):
    """A source that can be changed while a run trains (EDL-Dist)."""

    def set_thresholds(
        self, *, lt: float | None = None, ut: float | None = None
    ) -> None: ...

    def pause(self, *, paused: bool) -> None:
        """The student pauses or resumes, which is no sign of slow teachers."""

    def look(self) -> None:
        """Handle news while no batches are taken."""


class Samples(Protocol):
    """The training samples of one run (kdlab/data/samples.py)."""

    @property
    def classes(self) -> int: ...

    @property
    def augmented(self) -> bool:
        """True where views of a sample differ from epoch to epoch."""

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Ids of each batch of the plan."""

    def train_ids(self) -> NDArray[np.int64]:
        """All ids, sorted."""

    def views(
        self, ids: NDArray[np.int64], epoch: int, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]: ...

    def views_ahead(
        self, batches: Iterable[NDArray[np.int64]], epoch: int
    ) -> Iterator[NDArray[np.uint8]]:
        """Views of each of these batches, in order."""

    def labels(self, ids: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def mixed_labels(
        self, ids: NDArray[np.int64], epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Partners' labels and the share of a view's own image; None without mixup and CutMix."""

    def view_key(self) -> Mapping[str, str]:
        """Facts a view depends on besides (id, epoch): data digest and augmentation."""

    def describe(self) -> object:
        """Dataclass from which another process makes the same samples."""


@dataclass(frozen=True, slots=True)
class LoadedTeacher:
    """A teacher in this process: frozen, in eval mode."""

    infer: Callable[[Tensor], Tensor]  # (N, C, H, W) uint8 -> (N, classes) logits, CPU
    fingerprint: str  # of its weights


class TeacherPool(Protocol):
    """A pool of served teachers that is up (kdlab/cluster)."""

    address: str
    teacher: str  # fingerprint of network and weights
    tls: dict[str, str] | None  # PEM files by role: ca, cert, key; None is no TLS


@dataclass(slots=True)
class PoolAddress:
    """Address of a pool in another process, sent to ranks. Satisfies `TeacherPool`."""

    address: str
    teacher: str
    tls: dict[str, str] | None

    @classmethod
    def from_pool(cls, pool: TeacherPool | None) -> Self | None:
        """The address of a running pool; None without one."""
        return None if pool is None else cls(pool.address, pool.teacher, pool.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """Everything a source may use. A source loads the teacher only if it needs it."""

    samples: Samples
    student: str  # unique name of this student, across runs
    folder: Path  # of this member of the run, for logs
    load_teacher: Callable[[], LoadedTeacher] | None = None
    pool: TeacherPool | None = None
    report: Emit = discard_event
    stop: Callable[[], bool] = lambda: False  # the user asked to stop
    student_rate: Callable[[], float] | None = None  # t_s in samples/s, measured
    start: dict[str, Any] = field(default_factory=dict)  # {"epoch": 0, "done": []}
    in_group: bool = False  # one of several ranks that train on the same batches in step
    outputs: int | None = None  # numbers of an answer to a sample; None: the classes
    on_gpu: bool = False  # batches are copied to a GPU


class SourceSpec(Spec, ABC):
    """Base class of the specs of sources."""

    # Where the teacher runs: nowhere, in the student's process, or in a pool.
    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "none"

    @property
    def gives_hidden(self) -> bool:
        """True where labels are hidden states; the student then applies the teacher's head."""
        return False

    @property
    def keeps_labels(self) -> bool:
        """True where soft labels are stored by (row, view), for later epochs."""
        return False

    @property
    def bytes_per_output(self) -> int:
        """Bytes of one number of a teacher's answer on the wire."""
        return 4

    def bytes_on_wire(self, classes: int, view_bytes: int, batch: int) -> float:
        """Bytes of a sample on the wire, request and answer together.

        Args:
            classes: numbers of an answer.
            view_bytes: of an image.
            batch: samples of a request.
        """
        return 0.0  # most sources send nothing

    @abstractmethod
    def build(self, context: SourceContext) -> SoftLabelSource: ...

    def check(self, classes: int) -> None:  # most sources have nothing to check
        """Check the source for data with this number of classes before a run starts.

        Raises:
            BadInput: a setting does not fit; all faults in one message.
        """

    def bounds(
        self, largest: int, unit: float = 1.0
    ) -> tuple[float, float] | tuple[None, None]:
        """Thresholds of the volume (lt, ut), for batches of at most `largest` samples."""
        return None, None

    def tunables(self, batch: int) -> list[Tunable]:
        """Fields that can be set while a student trains, with their initial values."""
        return []

    def ways(self) -> dict[str, bool]:
        """Fields of a deployment that say how inputs reach teachers."""
        return {"by_reference": False, "or_value": False}

    def batch_faults(self, batch: int) -> Iterator[Fault]:
        """Faults of settings that are too small for this batch size."""
        yield from ()

    def loss_faults(self, against_draws: str) -> Iterator[Fault]:
        """Faults with a loss; a loss that cannot use sampled labels gives the reason."""
        yield from ()

    def feature_faults(self) -> Iterator[Fault]:
        """Faults where it cannot supply inner outputs of a teacher beside its logits."""
        yield from ()
