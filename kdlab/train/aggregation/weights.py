"""The base of all aggregations that make one model of the local models' weights.

There is no server: every worker merges the same models and gets the same result. Each keeps the
memory of the aggregation (the global weights, a momentum) in its checkpoints and beside the weights
that it publishes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from kdlab.config import Range
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.train.aggregation.kind import AggregationSpec, Weights

# Prefix of what a worker remembers for itself alone; all else is equal for all workers.
OWN = "own."


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInputs:
    """The models of one communication; tensors on the CPU, by their names in `state_dict`."""

    states: Sequence[Weights]  # of each worker that took part
    local: Weights  # of the worker that merges
    memory: Weights  # of the last communication; at first `AggregationSpec.memory`
    # Names that are trained; the rest are statistics and counters
    parameters: frozenset[str]
    round: int  # from 0
    rounds: int
    error: Callable[[Weights], float]  # percent on validation images; takes a while


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The weights and the memory after one communication."""

    weights: dict[str, Tensor]  # that the worker continues with
    memory: dict[str, Tensor] = field(default_factory=dict)
    # The global model, where workers continue with other weights
    global_weights: dict[str, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class WeightAggregation(AggregationSpec):
    """An aggregation of weights.

    tau: local iterations between communications.
    optimizer: after an average each worker may `keep` or `reset` its momentum.
    """

    tau: Annotated[int, Range(ge=1)] = 16
    optimizer: Literal["keep", "reset"] = "keep"

    averages = True
    encodes: ClassVar[bool] = False  # the model travels in the code of `encode`

    @property
    def combining(self) -> Combining:
        return "model_average"

    @property
    def needs_validation(self) -> bool:
        """True where it evaluates weights on validation images."""
        return False

    @property
    def parts(self) -> int:
        """Number of fragments that take turns, one every tau / parts iterations."""
        return 1

    def interval(self, iterations: int) -> int:
        """Return the local iterations of a round, in a training of `iterations`."""
        return max(1, self.tau // self.parts)

    def exchanged(self, number: int, of: int) -> float:
        """Return 1 where weights travel in communication `number` of `of`, and 0 where none do."""
        return 1.0

    def timetable(self, iterations: int, looks: int) -> RoundSchedule:
        tau = self.interval(iterations)
        return RoundSchedule(
            iterations=iterations, tau=tau, averages=True, exchanged=self.exchanged
        )

    def unfit(self, table: RoundSchedule, validation: int) -> str | None:
        if self.needs_validation and not validation:
            return (
                f"{self.component} chooses by validation images, and the data has none. Set "
                "data.validation_share."
            )
        if len(table.rounds) < self.parts:
            return (
                f"{self.parts} fragments take turns, and {table.iterations} iterations have "
                f"{len(table.rounds)} communications: some would never be exchanged. Lower tau "
                f"({self.tau}) or fragments, or train longer."
            )
        return super().unfit(table, validation)

    def encode(
        self, state: Weights, memory: Weights, parameters: frozenset[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the code of a local model, where the aggregation `encodes`, and the new memory."""
        raise NotImplementedError

    def decode(self, sent: Weights, memory: Weights) -> dict[str, Tensor]:
        """Return the local model that a receiver reads from its code."""
        raise NotImplementedError

    def merge(self, merging: MergeInputs) -> MergeResult:
        """Merge the models of one communication.

        A custom aggregation overrides this, or `merged` where nothing is remembered.
        """
        return MergeResult(weights=self.merged(merging.states))

    def merged(self, states: Sequence[Weights]) -> dict[str, Tensor]:
        """Average the weights and buffers of the local models.

        Args:
            states: of each worker that took part, on the CPU; by name as in `state_dict`.

        Returns:
            The mean of all weights (EC-DNN, Eq. 1); counters are those of the first model.
        """
        return mean_of(states)


def mean_of(states: Sequence[Weights]) -> dict[str, Tensor]:
    """Average each floating-point tensor; counters are those of the first model."""
    first, *others = states
    mean = {}
    for name, tensor in first.items():
        if not tensor.is_floating_point():
            mean[name] = tensor
            continue
        total = tensor.clone()
        for state in others:
            total += state[name]
        mean[name] = total / len(states)
    return mean
