"""Events of the teachers that serve a run, of their pool, and of chaos among them."""

from collections.abc import Mapping, Sequence

from msgspec import field

from kdlab.events.event import Event


class PoolStarting(Event, line="teacher pool: {pool}"):
    """Scheduler and teachers are being started, or a remote pool is being asked."""

    pool: str | None  # the component


class PoolReady(Event, line="the teacher pool is up at {address}"):
    """Teachers serve, or come when a student needs them."""

    address: str  # of the scheduler
    teachers: Sequence[Mapping[str, object]]  # facts that each states of itself


class Scheduled(
    Event,
    line="t_s {t_s:.0f}, t_t {t_t:.0f} samples/s: n = {n} teachers wanted, {got} assigned",
):
    """The static share of Algorithm 1 (EDL-Dist, line 1), reported once."""

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
    t_t: float  # samples/s, measured by the teacher
    device: str | None = None
    pid: int | None = None
    # Further facts that it states of itself
    more: Mapping[str, object] = field(default_factory=dict)


class EngineChanged(Event, line="{teacher} switched to {engine}"):
    """A teacher took a faster engine while it served, or had to give one up."""

    teacher: str
    engine: str  # with the rates of all that were tried


class TeacherLeft(Event):
    """A teacher was released, moved to another student, or said goodbye and answered all."""

    teacher: str
    resent: int  # parts that are sent to other teachers
    how: str = "left"  # or released, moved: in the pool's words

    def text(self) -> str:
        went = {"released": "is no longer needed", "moved": "serves another student now"}
        return f"{self.teacher} {went.get(self.how, 'left gracefully')}"


class TeacherLost(Event, line="{teacher} is lost: {why}. {resent} parts are sent again"):
    """A teacher died, fell silent or gave unusable answers."""

    teacher: str
    why: str
    resent: int


class LabelsDisagree(
    Event,
    line="{teacher} disagrees with the other teachers' soft labels and is excluded: "
    "{sent_again} samples are sent again, {trained} were trained on (batches "
    "{first_trained} to {last_trained})",
):
    """The spot check found a teacher whose answers two others contradict."""

    teacher: str
    epoch: int
    batch: int
    sent_again: int  # samples not trained on yet
    trained: int  # samples of this lease that were trained on
    first_trained: list[int] | None  # (epoch, batch)
    last_trained: list[int] | None


class TeacherRequested(Event):
    """The reader asked the pool for one teacher more, since the student starves."""

    granted: bool  # at once; else the next teacher that joins

    def text(self) -> str:
        got = "one was free" if self.granted else "none is free; it gets the next"
        return f"the student starves: asked for one more teacher ({got})"


class AllTeachersLost(
    Event,
    line="no teacher is left for {unplaced} samples; the student waits up to "
    "{wait_s:.0f} s. Start one:\n    {join}",
):
    """All teachers are gone."""

    unplaced: int  # samples that were requested and not answered
    wait_s: float
    coordinator: str | None = None  # address of the pool
    join: str | None = None  # the command that adds a teacher


class ThresholdLimits(
    Event,
    line="the student waits while teachers are idle: soft_labels.ut={ut} is too low; "
    "set soft_labels.ut={enough}",
):
    """The user's upper threshold limits the rate; values in samples."""

    ut: float
    enough: float


class MemoryLimits(
    Event,
    line="the student waits while teachers are idle: the free memory holds the inputs of "
    "{limit} samples in flight, {enough} would be enough; soft_labels.inputs=reference "
    "needs none",
):
    """The memory for inputs in flight limits the rate; values in samples."""

    limit: float
    enough: float


class CoordinatorAway(
    Event, line="the pool's scheduler does not answer ({why}); {teachers} teachers remain"
):
    """The scheduler is gone or silent; training continues with the student's teachers."""

    why: str
    teachers: int


class CoordinatorBack(Event, line="the pool's scheduler is back"):
    """The scheduler answers again."""


class LabelsAwaited(Event, line="no soft labels for {seconds:.0f} s: {why}"):
    """The student has waited long for soft labels."""

    seconds: float
    why: str  # as far as known


class ReaderRestarted(
    Event, line="{why}; a new one resumes at epoch {epoch}, batch {batches}"
):
    """The reader's process died; a new one reads what was not trained on."""

    why: str
    epoch: int
    batches: int  # of this epoch that were trained on


class TeacherAdded(Event, line="one more teacher was requested"):
    """Somebody asked the pool for one teacher more."""

    by: str
    pid: int | None = None  # where it is a process of this machine


class TeacherDrained(Event, line="{target} was asked to leave"):
    """Somebody asked a teacher to leave; it answers what it owes."""

    by: str
    target: str
    pid: int


class ChaosCaused(Event, line="chaos: {kind} {target}"):
    """Chaos hit a process, by the spec's timetable or by a user."""

    kind: str  # kill_teacher, stop_rank, and so on
    target: str
    number: int | None = None  # of such events so far
    by: str | None = None
    pid: int | None = None
