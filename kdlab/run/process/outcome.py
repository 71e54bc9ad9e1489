"""The result of a run as flat rows, as `kdlab run --json` prints it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Self

from torch import cuda

from kdlab.checks import checked
from kdlab.checks.machine import EngineFacts
from kdlab.checks.training import EndedTraining, RunFacts
from kdlab.cluster.pool import ComputingPoolSpec
from kdlab.events.blockwise import WholeStudentStarted
from kdlab.events.checks import CheckMade
from kdlab.events.ensemble import RoundClosed
from kdlab.events.event import Emit
from kdlab.events.log import read_all
from kdlab.events.runs import RunStarted
from kdlab.events.teachers import EngineChanged, TeacherJoined
from kdlab.events.training import EpochDone
from kdlab.experiment.folder import RunFolder
from kdlab.experiment.spec import ExperimentSpec
from kdlab.report.bottleneck import of_result
from kdlab.report.check_table import worst_first
from kdlab.report.verdict import Verdict, of_comparison
from kdlab.train.result import MemberResult


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """One member: accuracies in percent on test, counts of samples."""

    member: str
    source: str
    seed: int
    shares_cores: bool  # with its teachers: its speed compares with nothing
    student_top1: float
    student_top5: float
    student_top1_best: float
    validation_top1: float | None
    validation_top1_best: float | None
    best_epoch: int
    samples_per_second: float
    train_seconds: float
    wall_seconds: float
    epochs: int
    samples_seen: int
    samples_lost: int
    samples_repeated: int
    samples_rolled_back: int
    resends: float
    volume_max: float
    bytes_per_sample: dict[str, float]  # by way to the served teachers: reference, value
    student_path: str
    global_top1: float | None
    exchanged_mb: float | None  # received by each local model from the others
    # The side that limits a served training: see kdlab/report/bottleneck.py
    bottleneck: str | None
    starved: float | None  # share of its time that the student waited for soft labels
    verdict: str | None  # the bottleneck in a sentence, with advice
    without: str = ""  # rounds of local models that lacked a worker, in words
    more: Mapping[str, float]  # further figures of its method


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of a run, with a row for each of its members.

    Accuracies and speeds describe the served source (or the only one): means over seeds,
    with the standard deviation of top-1; counts are sums.
    """

    run_id: str
    experiment: str
    method: str | None
    dataset: str
    source: str
    seeds: list[int]
    student_top1: float | None
    student_top5: float | None
    student_top1_best: float | None
    validation_top1: float | None
    validation_top1_best: float | None
    samples_per_second: float | None
    global_top1: float | None
    student_top1_std: float | None
    samples_seen: int
    samples_lost: int
    samples_repeated: int
    samples_rolled_back: int
    teacher_top1: float | None
    costs: Mapping[str, Mapping[str, float]]
    epochs: int
    wall_seconds: float
    tracking_uri: str | None
    run_dir: str
    # Engine and precision of each teacher that served, where teachers chose them.
    teacher_engines: list[str]
    status: str = "finished"
    verdict: Verdict | None  # on the teacher; None where nothing was trained without one
    checks: list[dict[str, str]]  # findings: issues first
    runs: list[MemberRow]


_MEANS = (
    *("student_top1", "student_top5", "student_top1_best", "validation_top1"),
    *("validation_top1_best", "samples_per_second", "global_top1"),
)
_SAME = (  # fields that a row copies from a `MemberResult`
    *("member", "source", "seed", "shares_cores", "best_epoch", "samples_per_second"),
    *("train_seconds", "wall_seconds", "epochs", "global_top1", "more"),
)
_SUMS = ("samples_seen", "samples_lost", "samples_repeated", "samples_rolled_back")


def outcome(
    spec: ExperimentSpec,
    results: Sequence[MemberResult],
    *,
    run: RunFolder,
    experiment: str,
    dataset: str,
    wall_seconds: float,
    guessing: float,
    emit: Emit,
) -> RunOutcome:
    log, pool = _EventFacts.read(run), spec.teacher_pool
    if not isinstance(pool, ComputingPoolSpec) or pool.engine == "eager":
        log.engines.clear()  # the spec chose it
    facts = _facts(spec, results, log, guessing)
    findings = checked(EngineFacts.from_reports(log.engines), facts)
    for finding in findings:
        emit(finding)
    described = [r for r in results if r.source == spec.described()]
    rows = [row(result) for result in described]
    top1 = [r.student_top1 for r in rows]
    means: dict[str, Any] = {k: _mean([getattr(r, k) for r in rows]) for k in _MEANS}
    sums: dict[str, Any] = {k: sum(getattr(r, k) for r in rows) for k in _SUMS}
    return RunOutcome(
        run_id=run.run_id,
        experiment=experiment,
        method=spec.method.component,
        dataset=dataset,
        source=spec.described(),
        seeds=list(spec.seeds),
        student_top1_std=stdev(top1) if len(top1) > 1 else None,
        teacher_top1=next((t for r in results if (t := r.teacher_top1) is not None), None),
        costs=next((r.costs for r in described if r.costs), {}),
        epochs=described[0].epochs,
        wall_seconds=wall_seconds,
        tracking_uri=spec.tracking.store(run.path.parent),
        run_dir=str(run.path),
        # Engine and precision, each once.
        teacher_engines=sorted({words.split(",", 1)[0] for words in log.engines}),
        verdict=facts.verdict,
        checks=[one.to_json() for one in worst_first([*log.findings, *findings])],
        runs=[replace(row(one), without=log.without(one.member)) for one in results],
        **means,
        **sums,
    )


@dataclass(slots=True)
class _EventFacts:
    """Facts from a run's events that no result holds."""

    validated: int = 0  # validation images
    curves: dict[str | None, dict[int, float]] = field(default_factory=dict)
    # Of the whole student after its blocks, by member
    epochs_after: dict[str | None, int] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)  # as teachers reported them
    findings: list[CheckMade] = field(default_factory=list)  # of the newest session
    # Workers whose models made up each round, by member and round
    rounds: dict[str | None, dict[int, list[int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, run: RunFolder) -> Self:
        facts = cls()
        for event in read_all(run.events):
            match event:
                case RunStarted():
                    facts.validated = event.dataset.validation
                    facts.findings.clear()
                case EpochDone(validation_top1=float(top1)):
                    facts.curves.setdefault(event.member, {})[event.epoch] = top1
                # Its epochs count from 1 again; after a resume it starts once more
                case WholeStudentStarted() if event.member not in facts.epochs_after:
                    facts.epochs_after[event.member] = event.epochs
                    facts.curves.pop(event.member, None)
                case TeacherJoined() | EngineChanged() if "engine" in (
                    engine_facts := event.facts()
                ):
                    facts.engines.append(str(engine_facts["engine"]))
                case CheckMade():
                    facts.findings.append(event)
                case RoundClosed():
                    facts.rounds.setdefault(event.member, {})[event.round] = event.models
        return facts

    def without(self, member: str) -> str:
        """Rounds that lacked a worker, in words; the worker that missed most comes first."""
        rounds = self.rounds.get(member, {}).values()
        everybody = sorted({worker for models in rounds for worker in models})
        missed = [(sum(k not in models for models in rounds), k) for k in everybody]
        return ", ".join(
            f"{number} of {len(rounds)} rounds went without worker {worker}"
            for number, worker in sorted(missed, key=lambda pair: (-pair[0], pair[1]))
            if number
        )


def _facts(
    spec: ExperimentSpec, results: Sequence[MemberResult], log: _EventFacts, guessing: float
) -> RunFacts:
    """Collect what checks need of all trainings, and the verdict on the teacher."""
    trainings = []
    for result in results:
        slow, after = of_result(result.figures), log.epochs_after.get(result.member)
        # A searched network, which is trained anew, has no blocks
        then = "fine_tune" if "blocks_top1" in result.more else "retrain"
        trainings.append(
            EndedTraining(
                source=result.source,
                seed=result.seed,
                top1=result.last.top1,
                teacher_top1=result.teacher_top1,
                validation=[*log.curves.get(result.member, {}).values()],
                epochs=after or result.epochs,
                recipe=f"method.{then}" if after else "train",
                best_epoch=result.best_epoch,
                lost=result.lost,
                without=log.without(result.member),
                repeated=result.repeated,
                starved=None if slow is None else slow.starved,
                slow_side="" if slow is None else slow.advice(),
            )
        )
    images = min(result.last.samples for result in results)
    verdict = of_comparison(trainings, spec.described(), images, log.validated)
    return RunFacts(
        trainings=trainings,
        verdict=verdict,
        images=images,
        validated=log.validated,
        guessing=guessing,
    )


def shares_cores(spec: ExperimentSpec, source: str) -> bool:
    """Return whether teachers compute on the cores that train their student."""
    pool, device = spec.teacher_pool, spec.train.chosen_device()
    if source == "served" and pool is not None and (local := pool.local_teachers()).most:
        apart = cuda.is_available() if local.on_gpu is None else local.on_gpu
        return device == "cpu" and not apart
    return device == "cpu" and source == "in_process"


def row(result: MemberResult) -> MemberRow:
    slow = of_result(result.figures)
    return MemberRow(
        student_top1=result.last.top1,
        student_top5=result.last.top5,
        student_top1_best=result.best.top1,
        validation_top1=_number(result.validation_last),
        validation_top1_best=_number(result.validation_best),
        samples_seen=result.seen,
        samples_lost=result.lost,
        samples_repeated=result.repeated,
        samples_rolled_back=result.rolled_back,
        resends=result.figures.get("resends", 0),
        volume_max=result.figures.get("volume_max", 0),
        bytes_per_sample={
            way: carried
            for way in ("reference", "value")
            if (carried := result.figures.get(f"bytes_per_sample_{way}", 0))
        },
        student_path=result.model_path,
        exchanged_mb=None
        if (taken_in := result.figures.get("exchanged_bytes")) is None
        else taken_in / 1e6,
        bottleneck=None if slow is None else slow.side,
        starved=None if slow is None else slow.starved,
        verdict=None if slow is None else slow.sentence(),
        **{name: getattr(result, name) for name in _SAME},
    )


def _number(value: float) -> float | None:
    """None for "not a number" (no validation images), which JSON cannot hold."""
    return None if math.isnan(value) else value


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None
