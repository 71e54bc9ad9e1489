"""Algorithm 1 from above: tells the workers, hears them, and measures as the paper does.

Carries out kdlab/papers/ec_dnn/rounds.py, or own_clocks.py where workers exchange with a centre,
by workers here or in processes. A round of own clocks is counted, looked at and closed when the
slowest has done it; a resume begins where each worker was. All time counts but for the looks at
validation and test images, as section 5.3 has it, relabelling included.
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from kdlab.codec import Count, to_builtins
from kdlab.config.home import read_as, write_json
from kdlab.data.images import ImageData
from kdlab.errors import ClusterError, RunStopped
from kdlab.events.ensemble import (
    ErrorsMeasured,
    LocalModelLost,
    RoundClosed,
    RoundIncomplete,
    WorkerDone,
)
from kdlab.events.event import Emit
from kdlab.events.training import Resumed
from kdlab.methods.ensemble.exchange import ModelFile
from kdlab.methods.ensemble.model_workers import (
    ModelWorkers,
    RoundOrder,
    RoundReport,
    WorkerEvent,
)
from kdlab.methods.ensemble.round_errors import RoundEvaluator, RoundReports
from kdlab.papers.ec_dnn.own_clocks import OwnClocks
from kdlab.papers.ec_dnn.parallel import Busy, Combining, Network, round_s
from kdlab.papers.ec_dnn.round_schedule import Round, RoundSchedule
from kdlab.papers.ec_dnn.rounds import (
    Combine,
    Communicated,
    Finish,
    Instruction,
    Restart,
    Rounds,
    Train,
)
from kdlab.report.round_errors import CostTotals, RoundErrors
from kdlab.supervision.supervisor import ChildLost, ChildReady

_MAX_LOSSES = 3  # of one worker, without anything done in between
_KEPT = "direction.json"
_KEPT_ROUNDS = 2  # whose models stay on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The end of a training."""

    models: list[ModelFile]  # local models, by worker
    losses: dict[int, float]  # of each on its local data
    looks: list[RoundErrors]
    account: CostTotals


@dataclass(frozen=True, slots=True)
class RoundCheckpoint:
    """A training between two rounds, on disk."""

    round: Count  # to go on with, of the slowest
    latest: list[ModelFile]  # of each worker; the newest is the last
    account: CostTotals
    looks: list[RoundErrors]
    # Where each worker has a clock of its own: what was done of rounds that not all have done,
    # and the seconds of each worker in those that all have
    reports: list[RoundReport] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "RoundCheckpoint":
        """What a member keeps in its folder."""
        return read_as(cls, folder / _KEPT, "Put it back, or start a new run.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One member of a run."""

    workers: int  # K
    timetable: RoundSchedule  # of all
    combining: Combining  # how the global model is made
    data: ImageData  # with validation and test images
    folder: Path  # of the member
    emit: Emit  # events for people
    stop: Callable[[], bool] = lambda: False  # whether the user asked to stop
    waits: bool = False  # for a lost worker, in every round
    # Between machines, for the time of a communication
    network: Network = field(default_factory=Network)
    looks: int = 20  # how often the models are looked at, spread over all rounds
    keep_every_s: float = 5.0  # seconds between reset points that a resume can go back to


class RoundDriver:
    """Has a training carried out by its workers; `run` it once."""

    def __init__(self, training: Training, workers: ModelWorkers) -> None:
        self.training, self.workers = training, workers
        self.timetable, self.emit = training.timetable, training.emit
        self.account, self.looks = CostTotals(), list[RoundErrors]()  # so far
        self.latest: dict[int, ModelFile] = {}  # newest model of each worker
        self._look = RoundEvaluator(training.folder, training.data, training.combining)
        self._kept = training.folder / _KEPT
        self._rounds = defaultdict[int, RoundReports](RoundReports)  # not closed, by number
        self._seconds = dict.fromkeys(range(training.workers), 0.0)  # of closed ones
        self._centre = training.combining == "centre"  # each worker has a clock of its own
        self._losses = dict.fromkeys(range(training.workers), 0)  # times lost in a row
        self._final: dict[int, float] = {}  # loss of each on its local data, in the end
        self._kept_at = time.monotonic()
        self._keeps: set[int] = set()  # rounds after which all is kept
        number = len(self.timetable.rounds)
        every = max(1, round(number / max(1, training.looks)))
        self._looked_at = {r for r in range(number) if (number - 1 - r) % every == 0}
        first, latest = self._resume(), tuple(sorted(self.latest))
        rounds, waits = self.timetable.rounds, training.waits
        self.machine: Rounds | OwnClocks
        self.machine = Rounds(training.workers, rounds, first, latest, waits)
        if self._centre:
            done, everybody = self._rounds, range(training.workers)
            at = [first + sum(k in r.combined for r in done.values()) for k in everybody]
            trained = {k for k in everybody if k in done[at[k]].trained}
            self.machine = OwnClocks(at, rounds, trained)

    def _resume(self) -> int:
        """The round to go on with; what was counted before it is known again."""
        if not self._kept.exists():
            return 0
        kept = RoundCheckpoint.read(self.training.folder)
        self.account, self.looks = kept.account, kept.looks
        self.latest = {file.worker: file for file in kept.latest}
        self._seconds |= kept.seconds
        for report in kept.reports:
            self._note(report)
        self.emit(Resumed(epoch=kept.round, step=self.account.steps, rolled_back=0))
        return kept.round

    def run(self) -> TrainingOutcome:
        """To the end.

        Raises:
            RunStopped: the user asked; workers have kept their state.
            ClusterError: a worker is lost again and again.
            KdlabError: as a worker says.
        """
        if self.machine.first == len(self.timetable.rounds):
            raise ClusterError("This training has ended already; its result is missing.")
        try:
            for worker in range(self.training.workers):
                self.workers.start(worker)
            finished: Finish | None = None
            while finished is None:
                if self.training.stop():
                    raise RunStopped(
                        "stopped by the user; all workers have kept their state"
                    )
                for event in self.workers.events():
                    finished = self._execute(self._next_instructions(event)) or finished
        except RunStopped:
            if self._centre:
                self._keep(self.machine.first)
            raise
        finally:
            self.workers.close()
        return TrainingOutcome(
            models=[self.latest[k] for k in finished.models],
            losses=dict(self._final),
            looks=self.looks,
            account=self.account,
        )

    def _next_instructions(self, event: WorkerEvent) -> Iterable[Instruction]:
        match event:
            case ChildReady(worker):
                return self.machine.on_ready(worker)
            case ChildLost(worker, _, why):
                self.emit(LocalModelLost(worker=worker, why=why))
                self._losses[worker] += 1
                if self._losses[worker] > _MAX_LOSSES:
                    raise ClusterError(
                        f"Worker {worker} was lost {self._losses[worker]} times in a row "
                        f"without ending anything. The last time: {why}"
                    )
                return self.machine.on_lost(worker)
            case RoundReport(worker, what):
                self._losses[worker] = 0
                self._count(event)
                self._note(event)
                if self._centre and what == "combine":
                    self.latest.pop(worker, None)  # the newest is the last
                    self.latest[worker] = event.done.model
                return self.machine.on_done(worker)

    def _note(self, did: RoundReport) -> None:
        if did.train_loss is not None:
            self._final[did.worker] = did.train_loss
        own = self._rounds[did.done.round]
        (own.trained if did.what == "train" else own.combined)[did.worker] = did

    def _count(self, did: RoundReport) -> None:
        done = did.done
        self.account.samples += done.samples
        self.account.steps += done.steps
        self.account.fetched_bytes += done.fetched_bytes
        facts = asdict(done)
        del facts["model"]
        self.emit(WorkerDone(worker=did.worker, what=did.what, work=facts))

    def _execute(self, instructions: Iterable[Instruction]) -> Finish | None:
        finished = None
        for instruction in instructions:
            match instruction:
                case Train(worker, round_, latest):
                    self._close_round(round_.number)
                    models = tuple(self.latest[k] for k in latest if k in self.latest)
                    self._order("train", worker, round_.number, models)
                case Combine(worker, round_, members):
                    trained = self._rounds[round_.number].trained
                    models = tuple(trained[k].done.model for k in members)
                    self._decide_to_keep(round_.number)
                    self._order("combine", worker, round_.number, models)
                case Restart(worker):
                    self.workers.start(worker)
                case Communicated(number, members):
                    self._rounds[number].members = members
                    missing = self.training.workers - len(members)
                    if missing:
                        self.emit(RoundIncomplete(round=number, models=list(members)))
                case Finish():
                    self._close_round(len(self.timetable.rounds))
                    finished = instruction
        now = time.monotonic()
        if self._centre and (finished or now - self._kept_at >= self.training.keep_every_s):
            self._kept_at = now
            self._keep(self.machine.first)
        return finished

    def _order(
        self, what: str, worker: int, number: int, models: Sequence[ModelFile]
    ) -> None:
        last = number == len(self.timetable.rounds) - 1
        round_ = self.timetable.rounds[number]
        ends = what == "combine" or not round_.combines
        look = None
        if number in self._looked_at:
            look = str(self._look.path(number, worker, what))
        self.workers.send(
            RoundOrder(
                what=what,
                worker=worker,
                round=round_,
                models=tuple(models),
                centre=next(reversed(self.latest.values()), None) if self._centre else None,
                look=look,
                final=last and ends,
                keep=number in self._keeps or not round_.combines,
                spare=(self.training.waits or self._centre) and round_.combines,
            )
        )

    def _decide_to_keep(self, number: int) -> None:
        """Once for a round, and for all: a resume goes back to where everybody was kept.

        Often enough not to lose more than a moment; with a communication every few steps
        writing everything each time would take longer than the steps.
        """
        if self._centre or number in self._keeps:
            return
        last = number == len(self.timetable.rounds) - 1
        if last or time.monotonic() - self._kept_at >= self.training.keep_every_s:
            self._keeps.add(number)
            self._kept_at = time.monotonic()

    # Between rounds

    def _close_round(self, following: int) -> None:
        """Once, before the first order of the next round: count, look, keep."""
        number = following - 1
        if number not in self._rounds or not self._rounds[number].members:
            return
        own = self._rounds.pop(number)
        round_ = self.timetable.rounds[number]
        seconds = self._time(own, round_)
        self.account.iterations += round_.train_steps
        made = own.combined or own.trained
        if not self._centre:
            self.latest = {k: did.done.model for k, did in made.items()}
        self.emit(
            RoundClosed(
                round=number,
                of_rounds=len(self.timetable.rounds),
                models=list(own.members),
                iterations=self.account.iterations,
                loss=fmean(did.done.loss for did in own.trained.values()),
                parallel_s=self.account.parallel_s,
                round_s=seconds,
            )
        )
        if number in self._looked_at:
            self._tell(self._look.look(number, own, self.account))
        self._look.clear(number)
        if number in self._keeps or not round_.combines:
            self._keep(following)

    def _time(self, own: RoundReports, round_: Round) -> float:
        """Seconds of this round, on machines side by side."""
        busy = []
        for worker, did in own.trained.items():
            after = own.combined.get(worker)
            busy.append(
                Busy(
                    did.done.train_s + did.done.relabel_s,
                    after.done.relabel_s if after else 0.0,
                    after.done.compress_s if after else 0.0,
                )
            )
        size = max(did.done.model.bytes for did in own.trained.values())
        over, account = 0.0, self.account
        if round_.communicates:
            network, combining = self.training.network, self.training.combining
            models, sent = len(own.members), round(round_.exchanged * size)
            again = any(did.done.fetched_bytes for did in own.trained.values())
            # z-bar, of other models than these
            times = 2 if again and self.timetable.compresses else 1
            over = times * network.communication_s(combining, models, sent)
            taken_in = network.taken_in(combining, models, sent)
            account.exchanged_bytes += round(times * taken_in)
        account.communication_s += over
        account.train_s += max(did.done.train_s for did in own.trained.values())
        account.relabel_s += max(b.relabel for b in busy)
        account.relabel_s += max(did.done.relabel_s for did in own.trained.values())
        account.compress_s += max(b.compress for b in busy)
        seconds = round_s(busy, over)
        if self._centre:
            for worker, alone in zip(own.trained, busy, strict=True):
                self._seconds[worker] += round_s([alone], over)
            seconds = max(self._seconds.values()) - account.parallel_s
        account.parallel_s += seconds
        return seconds

    def _tell(self, found: RoundErrors) -> None:
        self.looks.append(found)
        self.emit(
            ErrorsMeasured(
                **asdict(found),
                diff_lg=found.diff_lg,
                diff_lc=found.diff_lc,
            )
        )

    def _keep(self, following: int) -> None:
        """What a resumed run needs; then models of long ago can go."""
        latest = list(self.latest.values())
        parts = [part for r in self._rounds.values() for part in (r.trained, r.combined)]
        reports = [did for part in parts for did in part.values()]
        kept = RoundCheckpoint(
            following, latest, self.account, self.looks, reports, self._seconds
        )
        write_json(self._kept, to_builtins(kept))
        for old in sorted((self.training.folder / "rounds").glob("*")):
            if int(old.name) < following - _KEPT_ROUNDS:
                shutil.rmtree(old)
