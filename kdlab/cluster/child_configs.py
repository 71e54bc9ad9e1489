"""Configurations of the processes of a pool: scheduler, teachers, readers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from kdlab.cluster.reader.ring import Layout
from kdlab.cluster.transport.messages import Inputs, Replies
from kdlab.cluster.transport.security import Files
from kdlab.config import Fault
from kdlab.data.samples import SampleDescription
from kdlab.papers.edl_dist.reader_rules import Rules
from kdlab.ranges import POSITIVE, SHARE, Range
from kdlab.simulate.mishaps import Behaviour
from kdlab.soft_labels.label_file import LabelMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Configuration of a Dask scheduler with the coordinator of a pool.

    Attributes:
        host, port: to listen on; port 0 takes any free port.
        tls: certificates; None is plain TCP.
        ttl_s: of the leases.
        deployment: of its teachers, as `Deployment.to_json` encodes it; None until a run
            publishes one.
        store_url: of a Redis, or path of a file, for the leases; None stores none.
        store_prefix: of its keys there.
        journal: path of the record of its events; None records none.
    """

    host: str
    port: int
    tls: Files | None
    ttl_s: float = 6.0
    deployment: Mapping[str, object] | None = None
    store_url: str | None = None
    store_prefix: str = "kdlab"
    journal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherConfig:
    """Configuration of one teacher.

    Attributes:
        scheduler: address of the pool's scheduler.
        name: shown to users.
        host: to listen on.
        port, label_port: to listen on; 0 takes any free port.
        threads: CPU threads.
        device: auto, cpu or cuda.
        number: among the teachers of a machine, so that each takes another GPU.
        scratch: folder for copies of weights, removed by its owner; None makes a temporary one.
        tls: certificates; None is plain TCP.
        chaos: whether tests may cut its network and make it lie.
        patience_s: how long it tries to reach a lost scheduler; None is for ever.
        sha256: of the only weights that it serves; None serves any deployment.
        notice: source of preemption notices of its machine (teachers/preemption.py).
    """

    scheduler: str
    name: str
    host: str
    threads: int
    device: str
    tls: Files | None
    port: int = 0
    label_port: int = 0
    number: int = 0
    scratch: str | None = None
    chaos: bool = False
    patience_s: float | None = None
    sha256: str | None = None
    notice: str | None = None


@dataclass(frozen=True, kw_only=True)
class EmulatedTeachers(Behaviour):
    """Teachers that answer zeros after the time of real ones, all in one process.

    teachers: their number.
    t_t: samples/s of each.
    more: further teachers: (samples/s, number).
    """

    teachers: Annotated[int, Range(ge=1, le=5000)] = 4
    t_t: Annotated[float, POSITIVE] = 1000.0
    more: tuple[tuple[float, int], ...] = ()
    jitter: Annotated[float, SHARE] = 0.1

    def cross_faults(self) -> Iterator[Fault]:
        yield from super().cross_faults()
        for rate, count in self.more:
            if not (rate > 0 and count >= 0):
                yield Fault("more", f"has {count} teachers of {rate:g} samples/s")

    @property
    def rates(self) -> list[float]:
        """Samples/s of each."""
        kinds = [(self.t_t, self.teachers), *self.more]
        return [rate for rate, count in kinds for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class EmulatedTeachersConfig(EmulatedTeachers):
    """Configuration of their process; scheduler, host, tls and scratch as for a teacher."""

    scheduler: str
    host: str
    tls: Files | None
    scratch: str


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """Settings of a student's connection to its pool.

    inputs: `reference` sends sample ids (teachers must be able to read the data),
        `value_uint8` and `value_float32` send the pixels, `auto` ids to teachers that have
        the same data and uint8 pixels to the others.
    replies: logits in full (float32), half (float16), only the top_k likeliest classes
        with the mass of the rest, or `sampled`: top_k classes drawn by their probability, right
        on average at temperature 1, in two or three bytes each (needs check_share: 0).
    at_most: teachers this student may hold; null is no limit.
    priority, floor: where runs share a pool that is too small: weight of this run's share, and
        a number of teachers whose rate other runs cannot take from it.
    """

    inputs: Inputs = "reference"
    replies: Replies = "full"
    top_k: Annotated[int, Range(ge=1)] = 10
    at_most: Annotated[int, Range(ge=1)] | None = None
    priority: Annotated[float, POSITIVE] = 1.0
    floor: Annotated[int, Range(ge=0)] = 0


@dataclass(frozen=True, kw_only=True)
class PoolConnectionConfig(TransportSettings):
    """Configuration of a student's connection to its pool.

    Attributes:
        student: name of the student.
        coordinator: address of the scheduler.
        tls: certificates; None is plain TCP.
        serves: fingerprint of its teacher; None accepts any.
        classes: numbers of an answer for each sample.
        rules: of its reader, such as its rate and the deadline of an answer.
    """

    student: str
    coordinator: str
    tls: Files | None
    classes: int
    rules: Rules
    serves: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStart:
    """Start of a reader: the epoch, and the batches of it that are done."""

    epoch: int
    done: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(PoolConnectionConfig):
    """Configuration of the DistilReader of one student.

    Attributes:
        start: epoch and batches from which it continues.
        samples: as `PlannedSamples.describe` encodes them.
        layout, ring_fd: of the shared memory between it and the trainer.
        socket_fd: over which the two wake each other.
        components: of notebook cells, that its data may need.
        label_file: description of the file that stores soft labels; None stores none.
        record: path of its journal; None records none.
    """

    start: ReaderStart
    samples: SampleDescription
    layout: Layout
    ring_fd: int
    socket_fd: int
    components: dict[str, dict[str, str]] = field(default_factory=dict)
    label_file: LabelMeta | None = None
    record: str | None = None


@dataclass(frozen=True, kw_only=True)
class EmulatedStudentsConfig(PoolConnectionConfig):
    """Configuration of emulated students, which train on nothing and differ only in name.

    Attributes:
        students: their number.
        batch, batches: samples of a batch, and batches of their epoch.
    """

    students: int
    batch: int
    batches: int
