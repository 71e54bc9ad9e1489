"""Events of local models that train side by side (EC-DNN, MA-DNN, E-DNN, S-DNN)."""

from collections.abc import Mapping

from msgspec import field

from kdlab.events.event import Event


class WorkerStarted(Event):
    """The process of a local model was started."""

    worker: int
    pid: int
    again: int = 0  # earlier starts in this session

    def text(self) -> str:
        words = f"worker {self.worker} restarted as process {self.pid}"
        return words if self.again else ""


class WorkerResumed(Event, line="worker {worker} resumes at step {step}"):
    """A local model continues from its checkpoint."""

    worker: int
    step: int


class WorkerHangs(
    Event, line="worker {worker} sent no heartbeat for {silent_s:.0f} s; it is killed"
):
    """A local model's process sent no heartbeat and is killed."""

    worker: int
    silent_s: float


class LocalModelLost(Event):
    """The process of a local model, or of trials, ended; a new one is started."""

    why: str
    worker: int | None = None  # the local model
    order: int | None = None  # of a sweep: its trial

    def text(self) -> str:
        # One line only: the end of its log is in the event.
        why = self.why.replace(" End of ", " Its log: ").split(":\n")[0]
        return f"{'a worker' if self.worker is None else f'worker {self.worker}'} is lost: {why}"


class LocalStep(Event):
    """Progress of one local model."""

    worker: int
    round: int
    step: int
    of_steps: int
    loss: float | None
    samples_per_second: float


class WorkerDone(Event, spread="work"):
    """A local model finished its part of a round."""

    worker: int
    what: str  # train or combine
    # Losses, counts and seconds
    work: Mapping[str, object] = field(default_factory=dict)


class RoundIncomplete(Event, line="round {round} continues with the models of {models}"):
    """Not all local models arrived in time."""

    round: int
    models: list[int]


class RoundClosed(Event):
    """A round is over: the local models were combined (EC-DNN, Algorithm 1)."""

    round: int
    of_rounds: int
    models: list[int]
    iterations: int  # of each local model so far
    loss: float  # mean of the local models
    parallel_s: float  # seconds so far, on machines side by side
    round_s: float


class ErrorsMeasured(
    Event,
    line="  {member}: {iterations} iterations  test error local {chosen:.2f} %, global "
    "{global_:.2f} %  after {parallel_s:.1f} s side by side",
):
    """Errors of local models and of the global one, percent; losses are mean cross entropy."""

    round: int
    iterations: int
    parallel_s: float
    locals: list[float]  # test error of each local model
    global_: float  # of the ensemble or the average
    compressed: list[float]  # of each compressed model
    # Of the local model with the smallest training loss at the end of the round
    chosen: float
    validation_locals: list[float]
    validation_global: float
    local_losses: list[float]
    global_loss: float
    models: list[int]
    diff_lg: float  # the paper's Diff_LG, Eq. 7
    diff_lc: float | None
