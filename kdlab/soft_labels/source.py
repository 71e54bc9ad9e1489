"""The protocol between a training loop and whatever supplies its batches.

A loop asks a source for an epoch and gets batches: views, true labels, soft labels. It
never learns where the soft labels were made.
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
    """What one step trains on. Tensors are on the CPU, rows in the order of `ids`."""

    index: int  # place in the epoch's plan
    ids: NDArray[np.int64]  # (N,) int64 rows of the data set
    views: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,) int64
    # (N, classes) teacher logits, float; (N, D) where the source gives hidden states; None
    # without a teacher
    soft: Tensor | None
    mixed: "MixedLabels | None" = None  # views of two images each

    def refuse_nonsense(self) -> None:
        """Whoever trains on it asks this first.

        Raises:
            TeacherRefused: soft labels that are no numbers.
        """
        if self.soft is None or self.soft.device.type != "cpu":
            return  # to look would make the host wait for the device; the loss is looked at later
        # Of a sum one number has to be looked at: of 256 by 1,000 a fourteenth of the time.
        if math.isnan(float(self.soft.sum())) and (bad := self.soft.isnan()).any():
            rows = self.ids[bad.any(1).cpu().numpy()].tolist()
            raise TeacherRefused(
                f"The teacher's answers to {len(rows)} of {len(self.ids)} images are no numbers "
                f"(images {rows[:3]}): nothing can be learned from them. Look at its weights, its "
                "normalisation (model.mean, model.std) and the precision it answers in."
            )


@dataclass(frozen=True, slots=True)
class MixedLabels:
    """The labels of what was mixed into views."""

    others: Tensor  # (N,) int64
    share: Tensor  # (N,) float32, of the batch's own labels

    @classmethod
    def of(cls, samples: "Samples", ids: NDArray[np.int64], view: int) -> Self | None:
        """None: nothing is mixed."""
        mixed = samples.mixed_labels(ids, view)
        return None if mixed is None else cls(*map(torch.from_numpy, mixed))


class SoftLabelSource(Protocol):
    def epoch(self, epoch: int, done: Collection[int]) -> Iterator[Batch]:
        """The batches of an epoch that are not in `done`, each exactly once.

        A batch's tensors may be overwritten when the next one is asked for.
        """

    def figures(self) -> dict[str, float]:
        """What the source wants seen beside the loss: volume, teachers, re-sends."""

    def close(self) -> None:
        """End what the source started. May be called twice."""


class LocalSource:
    """Batches made in this process, with what `soft` says of each: it starts nothing to end.

    Args:
        samples: of the run.
        soft: labels for a batch and its view; None leaves it at the true labels.
        views: of each sample; None is one of its own for every epoch.
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
        wanted = [b for b in enumerate(self.samples.batches(epoch)) if b[0] not in done]
        made = self.samples.views_ahead([ids for _, ids in wanted], view)
        for (index, ids), views in zip(wanted, made, strict=True):
            batch = Batch(
                index=index,
                ids=ids,
                views=torch.from_numpy(views),
                labels=torch.from_numpy(self.samples.labels(ids)),
                soft=None,
                mixed=MixedLabels.of(self.samples, ids, view),
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
    """A source that somebody can change while it goes on (EDL-Dist)."""

    def set_thresholds(
        self, *, lt: float | None = None, ut: float | None = None
    ) -> None: ...

    def pause(self, *, paused: bool) -> None:
        """The student stands still, or goes on: that says nothing about its teachers."""

    def look(self) -> None:
        """Pass on what is news while nobody takes batches."""


class Samples(Protocol):
    """The training samples of one run (kdlab/data/samples.py)."""

    @property
    def classes(self) -> int: ...

    @property
    def augmented(self) -> bool:
        """Whether a sample looks different from epoch to epoch."""

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
        """Labels of what is mixed into these views, and their own share; None: nothing ever is."""

    def view_key(self) -> Mapping[str, str]:
        """What a view depends on besides (id, epoch): data digest and augmentation."""

    def describe(self) -> object:
        """Enough for another process to make the same samples: a dataclass."""


@dataclass(frozen=True, slots=True)
class LoadedTeacher:
    """A teacher in this process: frozen, in eval mode."""

    infer: Callable[[Tensor], Tensor]  # (N, C, H, W) uint8 -> (N, classes) logits, CPU
    fingerprint: str  # of its weights


class TeacherPool(Protocol):
    """A pool of served teachers that is up (kdlab/cluster)."""

    address: str
    teacher: str  # fingerprint of the weights it serves
    tls: dict[str, str] | None  # PEM files by role: ca, cert, key; None is no TLS


@dataclass(slots=True)
class PoolAddress:
    """A pool that another process keeps, as it travels to ranks. Satisfies `TeacherPool`."""

    address: str
    teacher: str
    tls: dict[str, str] | None

    @classmethod
    def of(cls, pool: TeacherPool | None) -> Self | None:
        """The address of a pool that is up, if there is one."""
        return None if pool is None else cls(pool.address, pool.teacher, pool.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What a source may use. Loading the teacher is left to those that need it."""

    samples: Samples
    student: str  # a name of its own for this student, across runs
    folder: Path  # of this member of the run, for logs
    load_teacher: Callable[[], LoadedTeacher] | None = None
    pool: TeacherPool | None = None
    report: Emit = discard_event
    stop: Callable[[], bool] = lambda: False  # the user asked to stop
    student_rate: Callable[[], float] | None = None  # t_s in samples/s, measured
    start: dict[str, Any] = field(default_factory=dict)  # {"epoch": 0, "done": []}
    in_group: bool = False  # one of several ranks, which train on the same batches in step
    outputs: int | None = None  # of a teacher, for each sample; None: the classes
    on_gpu: bool = False  # its batches are copied to one


class SourceSpec(Spec, ABC):
    """A source, as a spec names it."""

    # Nowhere, in the student's process, or in a pool.
    needs_teacher: ClassVar[Literal["none", "in_process", "served"]] = "none"

    @property
    def gives_hidden(self) -> bool:
        """Whether it gives hidden states, to which the teacher's head is put at the student."""
        return False

    @property
    def keeps_labels(self) -> bool:
        """Whether soft labels are kept by (row, view), for other epochs."""
        return False

    @property
    def bytes_per_output(self) -> int:
        """Bytes that one number of a teacher's answer takes on its way."""
        return 4

    def bytes_on_wire(self, classes: int, view_bytes: int, batch: int) -> float:
        """Bytes of a sample between student and teachers, asked and answered.

        Args:
            classes: numbers of an answer.
            view_bytes: of an image.
            batch: samples of a request.
        """
        return 0.0  # of most nothing travels

    @abstractmethod
    def build(self, context: SourceContext) -> SoftLabelSource: ...

    def check(self, classes: int) -> None:  # most have nothing to check
        """Find what is wrong for data of so many classes before a run starts.

        Raises:
            BadInput: what, in one message.
        """

    def bounds(
        self, largest: int, unit: float = 1.0
    ) -> tuple[float, float] | tuple[None, None]:
        """Thresholds of the volume (lt, ut), for batches of at most so many samples."""
        return None, None

    def tunables(self, batch: int) -> list[Tunable]:
        """Fields that can be set while a student trains, as they are at the start."""
        return []

    def samples_held(self, largest: int) -> float | None:
        """The most that wait for the student; None where memory bounds them, or nothing."""
        return None

    def ways(self) -> dict[str, bool]:
        """How inputs go to teachers, as the fields of a deployment."""
        return {"by_reference": False, "or_value": False}

    def batch_faults(self, batch: int) -> Iterator[Fault]:
        """What is too small for batches of so many samples."""
        yield from ()

    def loss_faults(self, against_draws: str) -> Iterator[Fault]:
        """Why its labels do not serve a loss: one that draws do not serve says why."""
        yield from ()

    def feature_faults(self) -> Iterator[Fault]:
        """Why it cannot give inner outputs of a teacher beside its logits."""
        yield from ()
