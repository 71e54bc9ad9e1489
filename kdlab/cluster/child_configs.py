"""What the processes of a pool are started with: scheduler, teachers, readers."""

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
    """A Dask scheduler with the coordinator of a pool in it.

    Attributes:
        host, port: to listen on; port 0 is any that is free.
        tls: certificates; None is plain TCP.
        ttl_s: of the leases.
        deployment: what its teachers serve, as `Deployment.to_json` has it; None until a run
            brings one.
        store_url: of a Redis, or path of a file, that keeps the leases; None keeps none.
        store_prefix: of its keys there.
        journal: path of the record of all that it decided; None keeps none.
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
    """One teacher.

    Attributes:
        scheduler: address of the pool's scheduler.
        name: shown to people.
        host: to listen on.
        port, label_port: where it listens; 0 is any that is free.
        threads: CPU threads.
        device: auto, cpu or cuda.
        number: of several teachers on a machine, so that each takes a GPU of its own.
        scratch: folder for copies of weights, which its owner removes; None is a temporary one.
        tls: certificates; None is plain TCP.
        chaos: whether tests may cut its network and make it lie.
        patience_s: how long it tries to reach a scheduler that is away; None is for ever.
        sha256: of the only weights it serves; None serves what the pool serves.
        notice: where its machine says that it will be taken away (teachers/preemption.py).
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

    teachers: how many, all in one process.
    t_t: samples/s of each.
    more: others beside them: (samples/s, how many).
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
    """The process of them; scheduler, host, tls and scratch as of a teacher."""

    scheduler: str
    host: str
    tls: Files | None
    scratch: str


@dataclass(frozen=True, kw_only=True)
class TransportSettings:
    """What is chosen of how a student speaks to its pool.

    inputs: `reference` sends sample ids (teachers must be able to read the data),
        `value_uint8` and `value_float32` send the pixels, `auto` ids to teachers that have
        the same data and uint8 pixels to the others.
    replies: logits in full (float32), half (float16), only the top_k likeliest classes
        with the mass of the rest, or `sampled`: top_k classes drawn by their probability, right
        on average at temperature 1, in two or three bytes each (needs check_share: 0).
    at_most: teachers this student may hold; null is no limit.
    priority, floor: where several runs share a pool that falls short: its share in
        proportion, and as much as so many teachers do, which is not taken away for others.
    """

    inputs: Inputs = "reference"
    replies: Replies = "full"
    top_k: Annotated[int, Range(ge=1)] = 10
    at_most: Annotated[int, Range(ge=1)] | None = None
    priority: Annotated[float, POSITIVE] = 1.0
    floor: Annotated[int, Range(ge=0)] = 0


@dataclass(frozen=True, kw_only=True)
class PoolConnectionConfig(TransportSettings):
    """How a student speaks to its pool.

    Attributes:
        student: its name there.
        coordinator: address of the scheduler.
        tls: certificates; None is plain TCP.
        serves: fingerprint of the teacher that it asks for; None takes any.
        classes: numbers of an answer for each sample.
        rules: of its reader; how fast it is, and how long it waits for an answer.
    """

    student: str
    coordinator: str
    tls: Files | None
    classes: int
    rules: Rules
    serves: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderStart:
    """Where a reader begins: in this epoch, without the batches that are done."""

    epoch: int
    done: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(PoolConnectionConfig):
    """The DistilReader of one student.

    Attributes:
        start: what is still to be trained on.
        samples: as `PlannedSamples.describe` has them.
        layout, ring_fd: of the shared memory between it and the trainer.
        socket_fd: over which the two wake each other.
        components: of notebook cells, that its data may need.
        label_file: as which soft labels that arrive are kept; None keeps none.
        record: path of its journal; None keeps none.
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
    """Students that train on nothing, all alike but for their names.

    Attributes:
        students: how many.
        batch, batches: samples of a batch, and batches of their epoch.
    """

    students: int
    batch: int
    batches: int
