"""The base of all aggregations that make one model of the local models' weights.

Every worker does it by itself, from the same models, and all come to the same: there is no server.
What an aggregation must remember until the next time (the global weights, a momentum) lies with
each worker, in its checkpoints and beside the weights that it publishes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from kdlab.config import Range
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.train.aggregation.kind import AggregationSpec, Weights

# Begins the names of what a worker remembers for itself; all else is alike with all.
OWN = "own."


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInputs:
    """What there is to be merged; all tensors on the CPU, by name as in `state_dict`."""

    states: Sequence[Weights]  # of each worker that took part
    own: Weights  # of the worker that is to go on
    memory: Weights  # what was remembered; at first `WeightAggregation.memory`
    # Names that are trained; the rest are statistics and counters
    parameters: frozenset[str]
    round: int  # from 0
    rounds: int
    error: Callable[[Weights], float]  # percent on validation images; takes a while


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What comes of it."""

    weights: dict[str, Tensor]  # that the worker goes on with
    memory: dict[str, Tensor] = field(default_factory=dict)
    # The global model, where workers go on with something else
    whole: dict[str, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class WeightAggregation(AggregationSpec):
    """An aggregation of weights.

    tau: local iterations between communications.
    optimizer: each worker keeps its momentum over an average, or starts without.
    """

    tau: Annotated[int, Range(ge=1)] = 16
    optimizer: Literal["keep", "reset"] = "keep"

    averages = True
    encodes: ClassVar[bool] = (
        False  # what travels is no tensors of the model, but `encode`d
    )

    @property
    def combining(self) -> Combining:
        return "model_average"

    @property
    def needs_validation(self) -> bool:
        """Whether it asks how good weights are on validation images."""
        return False

    @property
    def parts(self) -> int:
        """Parts of the weights that take turns: one is exchanged every tau / parts iterations."""
        return 1

    def interval(self, iterations: int) -> int:
        """Local iterations of a round, in a training of so many."""
        return max(1, self.tau // self.parts)

    def exchanged(self, number: int, of: int) -> float:
        """1 where weights travel in communication `number` of so many; 0 where none do."""
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
        """What travels of a local model, where the aggregation `encodes`, and its memory then."""
        raise NotImplementedError

    def decode(self, sent: Weights, memory: Weights) -> dict[str, Tensor]:
        """The local model as whoever took in its code sees it."""
        raise NotImplementedError

    def merge(self, merging: MergeInputs) -> MergeResult:
        """One communication.

        An aggregation of one's own does this, or `merged` where nothing is remembered.
        """
        return MergeResult(weights=self.merged(merging.states))

    def merged(self, states: Sequence[Weights]) -> dict[str, Tensor]:
        """Weights and buffers of the global model.

        Args:
            states: of each worker that took part, on the CPU; by name as in `state_dict`.

        Returns:
            The mean of all weights (EC-DNN, Eq. 1); counters as the first one has them.
        """
        return mean_of(states)


def mean_of(states: Sequence[Weights]) -> dict[str, Tensor]:
    """The mean of each tensor of floating point; counters as the first one has them."""
    first, *others = states
    found = {}
    for name, tensor in first.items():
        if not tensor.is_floating_point():
            found[name] = tensor
            continue
        total = tensor.clone()
        for other in others:
            total += other[name]
        found[name] = total / len(states)
    return found
