"""Events of a run: its start and end, its members, its teacher's training."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from kdlab.events.event import Event


class LoggedData(Struct, frozen=True):
    """Facts of a run's data set."""

    name: str
    digest: str
    classes: int
    shape: list[int]  # (C, H, W)
    train: int  # images, as are the next two
    validation: int
    test: int


class RunStarted(Event, line="run {run_id} ({experiment})"):
    """A session of a run begins; a resumed run has several."""

    run_id: str
    experiment: str
    group: str  # the experiment in MLflow
    spec: Mapping[str, Any]  # the resolved spec
    spec_hash: str
    members: list[str]  # names of all trainings of the run
    machine: Mapping[str, object]
    versions: Mapping[str, str]  # of Python, kdlab and its libraries
    git: str | None  # commit of the working folder
    thresholds: list[float | None]  # lt and ut, in samples
    dataset: LoggedData
    tracking_uri: str | None  # of MLflow; None: it is not tracked


class MemberStarted(Event, line="training {member}"):
    """A training of the run begins."""

    source: str  # of its soft labels, or its variant
    seed: int
    shares_cores: bool = False  # its teachers compute on the cores that it is trained on


class MemberDone(Event):
    """A training of the run has ended."""

    result: Mapping[str, Any]
    artifacts: list[str]  # paths of its networks, card and pictures


class MethodsCompared(Event, line="compared in {artifacts}"):
    """All members have ended and were compared."""

    artifacts: list[str]


class OverviewWritten(Event):
    """The pictures and the note of the run for MLflow were written."""

    files: list[str]


class RunDone(Event):
    """A session of a run ends."""

    state: str  # finished, failed, stopped, lost
    result: Mapping[str, Any] | None = None
    error: str | None = None


class MachineUsed(Event):
    """Use of this machine by the processes of a run since the last such event."""

    cpu: float  # percent of all cores that it may use
    memory: float  # GiB, without memory that several processes share
    gpus: list[tuple[float, float]] = field(default_factory=list)  # percent and GiB of each


class RunRestarted(
    Event,
    line="the run's process {why}; it restarts from its newest checkpoint ({count} of {most})",
):
    """The process of the run was killed from outside and is restarted."""

    why: str  # the signal
    count: int  # restarts within `restart.within_s`, this one included
    most: int  # restarts within that time


class TeacherTraining(
    Event, line="training the teacher ({epochs} epochs); later runs reuse it"
):
    """Training of a teacher without weights starts."""

    folder: str
    epochs: int


class TeacherMeasured(
    Event,
    line="teacher: {top1:.2f} % top-1 on {images} {split} images (guessing {guessing:.1f} %), "
    "calibration error {calibration_error:.1f} %",
):
    """Accuracy of the teacher on the experiment's data before it teaches; percent."""

    split: str  # of the data
    images: int
    top1: float
    top5: float
    guessing: float  # top-1 of always predicting the most frequent class
    calibration_error: float
    confidence: float  # mean of its largest probability
    per_class: Mapping[str, float]  # top-1 of each
    validation_top1: float | None = None


class TeacherReady(
    Event, line="teacher ready: {validation_top1:.2f} % top-1 on validation"
):
    """The teacher has its weights; accuracies in percent."""

    folder: str
    validation_top1: float  # of the stored weights
    test_top1: float
    test_top5: float
    epoch: int  # from which the weights are
    train_seconds: float
    samples_per_second: float
    test: Mapping[str, object]  # all metrics on the test images
