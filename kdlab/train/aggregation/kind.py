"""The base of all aggregations: what one needs of a training, and what it does in it.

A method asks here and knows none of them by name. What stands here is an aggregation of local
models' outputs as it is: one of one's own says what it does otherwise, in a file of its own.
"""

from abc import ABC
from collections.abc import Collection, Mapping
from typing import ClassVar, Literal

from torch import Tensor

from kdlab.config.spec import Spec
from kdlab.losses.local import diversity_regularised
from kdlab.papers.ec_dnn.parallel import Combining
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.train.compression.kind import CompressionSpec
from kdlab.train.recipe import Recipe

Weights = Mapping[str, Tensor]


class AggregationSpec(Spec, ABC):
    """How parallel students become one."""

    joins: ClassVar[Literal["nothing", "ranks", "models"]] = "models"  # what becomes one
    # Whether local models go on with weights of all (`WeightAggregation`), not with their own
    averages: ClassVar[bool] = False
    least_workers: ClassVar[int] = 1
    # Settings to lower where a loss diverges
    diverges_by: ClassVar[tuple[str, ...]] = ("train.lr",)
    asks_itself: ClassVar[bool] = True  # a worker learns from its own outputs, too
    # Name under which it remembers the weights that all begin with; empty remembers none
    remembers: ClassVar[str] = ""

    @property
    def smallest_batch(self) -> int | None:
        """Samples that a batch must have at least; None where it may have any number."""
        return None

    @property
    def called(self) -> str:
        """What its paper, and a comparison, call a training with it."""
        return str(self.component).rpartition("/")[2]

    @property
    def combining(self) -> Combining:
        """What travels in a communication."""
        return "ensemble"

    @property
    def compressing(self) -> CompressionSpec | None:
        """How its global model becomes as small as a local one; None leaves it."""
        return None

    @property
    def compresses_in_line(self) -> bool:
        """Whether compressions take their batches from those of the training."""
        return self.compressing is not None and self.compressing.in_line

    def local_recipe(self, recipe: Recipe) -> Recipe:
        """How local models are trained, where the experiment has this recipe."""
        return recipe

    def timetable(self, iterations: int, looks: int) -> RoundSchedule:
        """The rounds of so many local iterations; without communications, `looks` of them."""
        return RoundSchedule(iterations=iterations, tau=None, looks=looks)

    def unfit(self, table: RoundSchedule, validation: int) -> str | None:
        """Why it cannot do this timetable with so many validation images; None if it can."""
        if table.tau is None or table.tau <= table.iterations:
            return None
        return (
            f"tau is {table.tau}, and each worker has {table.iterations} local iterations: no "
            "communication would happen before the end. Lower tau, or train longer."
        )

    def travelling(
        self, number: int, state: Weights, parameters: frozenset[str]
    ) -> Collection[str]:
        """Names of the tensors of a local model that travel after round `number`, if any do."""
        return state.keys()

    def memory(self, start: Weights, parameters: frozenset[str]) -> dict[str, Tensor]:
        """What is remembered before anything was merged, of the weights that all begin with."""
        return {
            f"{self.remembers}.{name}": start[name].clone()
            for name in sorted(parameters if self.remembers else ())
        }

    def local_loss(
        self, scores: Tensor, hard: Tensor, mean: Tensor | None, weight: float
    ) -> Tensor:
        """What a local step minimises.

        Args:
            scores: (N, C) logits of the local model.
            hard: its loss of the true labels.
            mean: (N, C) mean probabilities of the newest models of all; None before they count.
            weight: of them, as the timetable's round has it.
        """
        return diversity_regularised(scores, hard, mean, weight)
