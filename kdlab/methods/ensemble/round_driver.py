"""Driver of Algorithm 1: sends orders to the workers, and measures as the paper does.

Carries out kdlab/papers/ec_dnn/rounds.py, or own_clocks.py where workers exchange with a centre. A
round of own clocks is counted, evaluated and closed when the slowest worker has done it; a resume
begins where each worker was. All time counts except evaluation on validation and test images;
relabelling is included (section 5.3).
"""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
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

_MAX_LOSSES = 3  # of one worker in a row
_CHECKPOINT = "direction.json"
_KEPT_ROUNDS = 2  # rounds whose models stay on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """Models and figures at the end of a training."""

    models: list[ModelFile]  # local models, by worker
    losses: dict[int, float]  # of each worker on its local data
    looks: list[RoundErrors]
    account: CostTotals


@dataclass(frozen=True, slots=True)
class RoundCheckpoint:
    """Checkpoint of a training between two rounds."""

    round: Count  # next round, of the slowest worker
    latest: list[ModelFile]  # of each worker, the newest last
    account: CostTotals
    looks: list[RoundErrors]
    # Where each worker has its own clock: reports of rounds that not all have done, and the
    # seconds of each worker in those that all have
    reports: list[RoundReport] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "RoundCheckpoint":
        """Read the checkpoint in the folder of a member."""
        return read_as(cls, folder / _CHECKPOINT, "Put it back, or start a new run.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Training of one member of a run."""

    workers: int  # K
    timetable: RoundSchedule  # of all
    combining: Combining
    data: ImageData  # with validation and test images
    folder: Path  # of the member
    emit: Emit  # events for people
    stop: Callable[[], bool] = lambda: False  # True once the user asked to stop
    waits: bool = False  # wait for a lost worker in every round
    network: Network = field(default_factory=Network)  # for the modelled communication time
    looks: int = 20  # number of evaluations, spread over all rounds
    keep_every_s: float = 5.0  # between saved reset points


class RoundDriver:
    """Driver of one training; call `run` once."""

    def __init__(self, training: Training, workers: ModelWorkers) -> None:
        self.training, self.workers = training, workers
        self.timetable, self.emit = training.timetable, training.emit
        self.account, self.looks = CostTotals(), list[RoundErrors]()  # so far
        self.latest: dict[int, ModelFile] = {}  # newest model of each worker
        self._evaluator = RoundEvaluator(training.folder, training.data, training.combining)
        self._rounds = defaultdict[int, RoundReports](RoundReports)  # not closed, by number
        self._seconds = dict.fromkeys(range(training.workers), 0.0)  # of closed rounds
        self._centre = training.combining == "centre"  # each worker has its own clock
        self._losses = dict.fromkeys(range(training.workers), 0)  # times lost in a row
        self._final: dict[
            int, float
        ] = {}  # loss of each worker on its local data, at the end
        self._saved_at = time.monotonic()
        self._saves: set[int] = set()  # rounds after which all is saved
        number = len(self.timetable.rounds)
        every = max(1, round(number / max(1, training.looks)))
        self._evaluated = {r for r in range(number) if (number - 1 - r) % every == 0}
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
        """Restore the checkpoint, if there is one, and return the next round."""
        if not (self.training.folder / _CHECKPOINT).exists():
            return 0
        checkpoint = RoundCheckpoint.read(self.training.folder)
        self.account, self.looks = checkpoint.account, checkpoint.looks
        self.latest = {file.worker: file for file in checkpoint.latest}
        self._seconds |= checkpoint.seconds
        for report in checkpoint.reports:
            self._note(report)
        self.emit(Resumed(epoch=checkpoint.round, step=self.account.steps, rolled_back=0))
        return checkpoint.round

    def run(self) -> TrainingOutcome:
        """Train to the end.

        Raises:
            RunStopped: the user asked for it; the workers have saved their state.
            ClusterError: a worker was lost too often in a row.
            KdlabError: reported by a worker.
        """
        if self.machine.first == len(self.timetable.rounds):
            raise ClusterError(
                "This training has already ended, but its result is missing."
            )
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
                self._save(self.machine.first)
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
                        f"without finishing a round. Last reason: {why}"
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
        reports = self._rounds[did.done.round]
        (reports.trained if did.what == "train" else reports.combined)[did.worker] = did

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
                    self._order("train", worker, round_, models)
                case Combine(worker, round_, members):
                    trained = self._rounds[round_.number].trained
                    models = tuple(trained[k].done.model for k in members)
                    self._decide_to_save(round_.number)
                    self._order("combine", worker, round_, models)
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
        if self._centre and (
            finished or now - self._saved_at >= self.training.keep_every_s
        ):
            self._saved_at = now
            self._save(self.machine.first)
        return finished

    def _order(
        self, what: str, worker: int, round_: Round, models: tuple[ModelFile, ...]
    ) -> None:
        number, look = round_.number, None
        ends = what == "combine" or not round_.combines
        if number in self._evaluated:
            look = str(self._evaluator.path(number, worker, what))
        self.workers.send(
            RoundOrder(
                what=what,
                worker=worker,
                round=round_,
                models=models,
                centre=next(reversed(self.latest.values()), None) if self._centre else None,
                look=look,
                final=ends and number == len(self.timetable.rounds) - 1,
                keep=number in self._saves or not round_.combines,
                spare=(self.training.waits or self._centre) and round_.combines,
            )
        )

    def _decide_to_save(self, number: int) -> None:
        """Decide once for all workers whether they save this round, for a resume to go back to.

        With a communication every few steps, saving each would take longer than the steps.
        """
        if self._centre or number in self._saves:
            return
        last = number == len(self.timetable.rounds) - 1
        if last or time.monotonic() - self._saved_at >= self.training.keep_every_s:
            self._saves.add(number)
            self._saved_at = time.monotonic()

    # Between rounds

    def _close_round(self, following: int) -> None:
        """Count, evaluate and save a round, before the first order of the next one."""
        number = following - 1
        if number not in self._rounds or not self._rounds[number].members:
            return
        reports = self._rounds.pop(number)
        round_ = self.timetable.rounds[number]
        seconds = self._time(reports, round_)
        self.account.iterations += round_.train_steps
        ends = reports.combined or reports.trained
        if not self._centre:
            self.latest = {k: did.done.model for k, did in ends.items()}
        self.emit(
            RoundClosed(
                round=number,
                of_rounds=len(self.timetable.rounds),
                models=list(reports.members),
                iterations=self.account.iterations,
                loss=fmean(did.done.loss for did in reports.trained.values()),
                parallel_s=self.account.parallel_s,
                round_s=seconds,
            )
        )
        if number in self._evaluated:
            errors = self._evaluator.evaluate(number, reports, self.account)
            self.looks.append(errors)
            lg, lc = errors.diff_lg, errors.diff_lc
            self.emit(ErrorsMeasured(**asdict(errors), diff_lg=lg, diff_lc=lc))
        self._evaluator.clear(number)
        if number in self._saves or not round_.combines:
            self._save(following)

    def _time(self, reports: RoundReports, round_: Round) -> float:
        """Add up the costs of a round, and return its seconds on parallel machines (4.3)."""
        works = {k: did.done for k, did in reports.trained.items()}
        busy = []
        for worker, work in works.items():
            after = reports.combined.get(worker)
            parts = (after.done.relabel_s, after.done.compress_s) if after else (0.0, 0.0)
            busy.append(Busy(work.train_s + work.relabel_s, *parts))
        size = max(work.model.bytes for work in works.values())
        over, account = 0.0, self.account
        if round_.communicates:
            network, combining = self.training.network, self.training.combining
            models, sent = len(reports.members), round(round_.exchanged * size)
            again = any(work.fetched_bytes for work in works.values())
            # z-bar needs the compressed models, beside those that are combined
            times = 2 if again and self.timetable.compresses else 1
            over = times * network.communication_s(combining, models, sent)
            taken_in = network.taken_in(combining, models, sent)
            account.exchanged_bytes += round(times * taken_in)
        account.communication_s += over
        account.train_s += max(work.train_s for work in works.values())
        account.relabel_s += max(b.relabel for b in busy)
        account.relabel_s += max(work.relabel_s for work in works.values())
        account.compress_s += max(b.compress for b in busy)
        seconds = round_s(busy, over)
        if self._centre:
            for worker, seconds_busy in zip(works, busy, strict=True):
                self._seconds[worker] += round_s([seconds_busy], over)
            seconds = max(self._seconds.values()) - account.parallel_s
        account.parallel_s += seconds
        return seconds

    def _save(self, following: int) -> None:
        """Save what a resume needs, then delete the models of older rounds."""
        latest = list(self.latest.values())
        parts = [part for r in self._rounds.values() for part in (r.trained, r.combined)]
        reports = [did for part in parts for did in part.values()]
        checkpoint = RoundCheckpoint(
            following, latest, self.account, self.looks, reports, self._seconds
        )
        write_json(self.training.folder / _CHECKPOINT, to_builtins(checkpoint))
        for old in sorted((self.training.folder / "rounds").glob("*")):
            if int(old.name) < following - _KEPT_ROUNDS:
                shutil.rmtree(old)
