"""Events of the teachers that serve a run, of their pool, and of chaos among them."""

from collections.abc import Mapping, Sequence

from msgspec import field

from kdlab.events.event import Event


class PoolStarting(Event, line="teacher pool: {pool}"):
    """Scheduler and teachers are started, or a remote pool is asked."""

    pool: str | None  # the component


class PoolReady(Event, line="the teacher pool is up at {address}"):
    """Teachers serve, or come when a student needs them."""

    address: str  # of the scheduler
    teachers: Sequence[Mapping[str, object]]  # what each says of itself


class Scheduled(
    Event,
    line="t_s {t_s:.0f}, t_t {t_t:.0f} samples/s: n = {n} teachers wanted, {got} assigned",
):
    """The static share of Algorithm 1 (EDL-Dist), said once."""

    t_s: float  # samples/s of the student without a teacher
    t_t: float  # samples/s of a teacher, mean
    n: int
    got: int


class TeacherJoined(
    Event, spread="more", line="{name} joined ({device}, {t_t:.0f} samples/s, pid {pid})"
):
    """A teacher was assigned to this student."""

    name: str
    address: str
    lease: int  # its epoch
    t_t: float  # samples/s, as it measured
    device: str | None = None
    pid: int | None = None
    # Whatever else it says of itself.
    more: Mapping[str, object] = field(default_factory=dict)


class EngineChanged(Event, line="{teacher} computes with {engine} from now on"):
    """A teacher took a faster engine while it served, or had to give one up."""

    teacher: str
    engine: str  # with the figures of all that were tried


class TeacherLeft(Event):
    """A teacher was released, or serves somebody else, or said goodbye and answered all."""

    teacher: str
    resent: int  # parts that are sent to others
    how: str = "left"  # or released, moved: as the pool says it

    def text(self) -> str:
        went = {"released": "is not needed any more", "moved": "serves another student now"}
        return f"{self.teacher} {went.get(self.how, 'left gracefully')}"


class TeacherLost(Event, line="{teacher} is lost: {why}. {resent} batches are sent again"):
    """A teacher died, fell silent or answered what cannot be used."""

    teacher: str
    why: str
    resent: int


class LabelsDisagree(
    Event,
    line="{teacher} gave other soft labels than the other teachers and is left out: "
    "{sent_again} samples are asked again, {trained} were trained on (batches "
    "{first_trained} to {last_trained})",
):
    """The spot check found a teacher whose answers two others contradict."""

    teacher: str
    epoch: int
    batch: int
    sent_again: int  # samples not trained on yet
    trained: int  # samples of this lease that were
    first_trained: list[int] | None  # (epoch, batch)
    last_trained: list[int] | None


class TeacherRequested(Event):
    """The student starves, so the reader asked the pool for one teacher more."""

    granted: bool  # at once; else the next one that comes

    def text(self) -> str:
        got = "one was free" if self.granted else "none is free; the next one comes"
        return f"the student starves: asked for one more teacher ({got})"


class AllTeachersLost(
    Event,
    line="no teacher is left for {unplaced} samples; the student waits up to "
    "{wait_s:.0f} s. Start one:\n    {join}",
):
    """All teachers are gone."""

    unplaced: int  # samples that were asked for and not answered
    wait_s: float
    coordinator: str | None = None  # address of the pool
    join: str | None = None  # the command that adds a teacher


class ThresholdLimits(
    Event,
    line="the student waits although teachers have nothing to do: soft_labels.ut={ut} holds "
    "them back; soft_labels.ut={enough} would do",
):
    """The user's upper threshold is what limits the rate; samples."""

    ut: float
    enough: float


class MemoryLimits(
    Event,
    line="the student waits although teachers have nothing to do: the memory that is free "
    "holds the inputs of {limit} samples in flight, {enough} would do; "
    "soft_labels.inputs=reference needs none",
):
    """The memory for inputs in flight is what limits the rate; samples."""

    limit: float
    enough: float


class CoordinatorAway(
    Event, line="the pool's scheduler does not answer ({why}); {teachers} teachers serve on"
):
    """The scheduler is gone or silent; training goes on with the teachers that it gave."""

    why: str
    teachers: int


class CoordinatorBack(Event, line="the pool's scheduler is back"):
    """The scheduler answers again."""


class LabelsAwaited(Event, line="no soft labels for {seconds:.0f} s: {why}"):
    """The student waits for long, and why as far as is known."""

    seconds: float
    why: str


class ReaderRestarted(
    Event, line="{why}; another one goes on from epoch {epoch}, batch {batches}"
):
    """The reader's process died; its successor takes up what was not trained on."""

    why: str
    epoch: int
    batches: int  # of this epoch, that were trained on


class TeacherAdded(Event, line="one more teacher was asked for"):
    """Somebody asked the pool for one teacher more."""

    by: str
    pid: int | None = None  # of one that is a process of this machine


class TeacherDrained(Event, line="{target} was asked to leave"):
    """Somebody asked a teacher to leave; it answers what it owes."""

    by: str
    target: str
    pid: int


class ChaosCaused(Event, line="chaos: {kind} {target}"):
    """A process was hit, by the spec's timetable or by somebody."""

    kind: str  # kill_teacher, stop_rank, and so on
    target: str
    number: int | None = None  # how many have been
    by: str | None = None
    pid: int | None = None
