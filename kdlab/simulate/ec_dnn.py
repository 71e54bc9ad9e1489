"""EC-DNN and MA-DNN on a simulated clock: the time of section 4.3 for any number of workers.

The machine that directs real workers (kdlab/papers/ec_dnn/rounds.py) directs these; each task
takes the time of a card.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Literal

from kdlab.config import Fault, Range, register
from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, Spec
from kdlab.papers.ec_dnn.parallel import Combining, Network
from kdlab.papers.ec_dnn.round_schedule import Round, RoundSchedule
from kdlab.papers.ec_dnn.rounds import Combine, Finish, Instruction, Rounds, Train
from kdlab.simulate.clock import Clock
from kdlab.simulate.kind import SimulationSpec

_POSITIVE = Range(ge=1)
OnEvent = Callable[[int], Iterable[Instruction]]


@dataclass(frozen=True, kw_only=True)
class EnsembleCase(Spec):
    """One training to simulate.

    method: ec, ma or e (independent workers).
    iterations: local iterations of each worker.
    step_ms: of an SGD step; forward_ms: of a model's forward pass over a batch.
    speeds: relative speed of each worker; none where all are alike.
    p_fraction: compression steps, as a share of the local iterations.
    diversity: Eq. 5 with z-bar: another exchange, and K forward passes for each step.
    """

    name: str
    method: Literal["ec", "ma", "e"]
    workers: Annotated[int, _POSITIVE] = 4
    tau: Annotated[int, _POSITIVE] = 16
    iterations: Annotated[int, _POSITIVE] = 10_000
    step_ms: Annotated[float, POSITIVE] = 50.0
    forward_ms: Annotated[float, POSITIVE] = 15.0
    model_mb: Annotated[float, POSITIVE] = 4.0
    gbit_per_s: Annotated[float, POSITIVE] = 1.0
    speeds: tuple[Annotated[float, POSITIVE], ...] = ()
    p_fraction: Annotated[float, NOT_NEGATIVE] = 0.1
    diversity: bool = True

    def cross_faults(self) -> Iterator[Fault]:
        if self.speeds and len(self.speeds) != self.workers:
            yield Fault(
                "speeds", f"has {len(self.speeds)} numbers for {self.workers} workers"
            )

    @property
    def timetable(self) -> RoundSchedule:
        if self.method == "e":
            return RoundSchedule(iterations=self.iterations, tau=None)
        if self.method == "ma":
            return RoundSchedule(iterations=self.iterations, tau=self.tau, averages=True)
        return RoundSchedule(
            iterations=self.iterations,
            tau=self.tau,
            compresses=True,
            p_fraction=self.p_fraction,
            diversity_weight=1.0 if self.diversity else 0.0,
        )


@register("simulate/ec_dnn")
@dataclass(frozen=True, kw_only=True)
class EcDnn(SimulationSpec):
    """Overall times of trainings side by side; the others are relative to the first case."""

    cases: tuple[EnsembleCase, ...]
    calibration: str = ""

    def cross_faults(self) -> Iterator[Fault]:
        if not self.cases:
            yield Fault("cases", "is empty; give at least one")


@dataclass(slots=True)
class EnsembleOutcome:
    """Times of one simulated case, in seconds."""

    case: EnsembleCase
    overall_s: float = 0.0
    communication_s: float = 0.0
    parts: dict[str, float] = field(  # of worker 0
        default_factory=lambda: dict.fromkeys(("train", "relabel", "compress"), 0.0)
    )
    rounds: int = 0
    events: int = 0


def simulate_case(case: EnsembleCase) -> EnsembleOutcome:
    """Simulate one case from the first round to the last."""
    return _Simulation(case).run()


class _Simulation:
    def __init__(self, case: EnsembleCase) -> None:
        self.case, self.clock, self.outcome = case, Clock(), EnsembleOutcome(case)
        self.rounds = Rounds(case.workers, case.timetable.rounds)
        self.network = Network(bytes_per_s=case.gbit_per_s * 1.25e8)
        self.speeds = case.speeds or (1.0,) * case.workers

    def run(self) -> EnsembleOutcome:
        for worker in range(self.case.workers):
            self._do(self.rounds.on_ready(worker))
        self.clock.run(inf)
        self.outcome.events = self.clock.events
        return self.outcome

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Train(worker, round_, latest):
                    seconds = self._train_s(worker, round_, models=len(latest))
                    self._then(seconds, self.rounds.on_done, worker)
                case Combine(worker, round_, models):
                    seconds = self._combine_s(worker, round_, models=len(models))
                    self._then(seconds, self.rounds.on_done, worker)
                case Finish():
                    self.outcome.rounds = len(self.rounds.rounds)
                    self.outcome.overall_s = self.clock.now

    def _then(self, seconds: float, on_event: OnEvent, worker: int) -> None:
        self.clock.after(seconds, lambda: self._do(on_event(worker)))

    def _note(self, worker: int, part: str, seconds: float) -> float:
        if worker == 0:
            self.outcome.parts[part] += seconds
        return seconds

    def _train_s(self, worker: int, round_: Round, models: int) -> float:
        case, speed = self.case, self.speeds[worker]
        train_s = round_.train_steps * case.step_ms / 1000 / speed
        seconds = self._note(worker, "train", train_s)
        if round_.diversity_weight and models:
            rows = round_.train_steps * models * case.forward_ms / 1000 / speed
            seconds += self._note(worker, "relabel", rows)
            seconds += self._communicates(worker, models)
        return seconds

    def _communicates(self, worker: int, models: int) -> float:
        combining: Combining = "model_average" if self.case.method == "ma" else "ensemble"
        size = round(1e6 * self.case.model_mb)
        seconds = self.network.communication_s(combining, models, size)
        if worker == 0:
            self.outcome.communication_s += seconds
        return seconds

    def _combine_s(self, worker: int, round_: Round, models: int) -> float:
        case, speed = self.case, self.speeds[worker]
        seconds = self._communicates(worker, models)
        steps = round_.compress_steps
        rows = steps * models * case.forward_ms / 1000 / speed
        seconds += self._note(worker, "relabel", rows)
        return seconds + self._note(worker, "compress", steps * case.step_ms / 1000 / speed)


def crossover_gbit(first: EnsembleCase, second: EnsembleCase) -> float | None:
    """Bandwidth in Gbit/s at which two trainings take the same time; None if one always wins.

    All workers wait for all in every round, so the overall time is a constant and a part in
    proportion to 1 / bandwidth; two bandwidths give both.
    """
    (fixed, variable), (fixed_2, variable_2) = map(_by_bandwidth, (first, second))
    if fixed == fixed_2:
        return None
    crossing = (variable_2 - variable) / (fixed - fixed_2)
    return crossing if crossing > 0 else None


def _by_bandwidth(case: EnsembleCase) -> tuple[float, float]:
    """(seconds that depend on no link, further seconds at 1 Gbit/s)."""
    slow, fast = (simulate_case(replace(case, gbit_per_s=g)).overall_s for g in (1.0, 2.0))
    return 2 * fast - slow, 2 * (slow - fast)
