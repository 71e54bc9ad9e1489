"""The base of all aggregations: how local models become one.

Methods use this interface and know no aggregation by name. The defaults are those of an ensemble of
the local models' outputs; a custom aggregation overrides what differs.
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
    # True where local models continue with merged weights (`WeightAggregation`)
    averages: ClassVar[bool] = False
    least_workers: ClassVar[int] = 1
    diverges_by: ClassVar[tuple[str, ...]] = ("train.lr",)  # settings to lower
    asks_itself: ClassVar[bool] = True  # a worker learns from its own outputs too
    # Name under which it remembers the initial weights; empty: it remembers none
    remembers: ClassVar[str] = ""

    @property
    def smallest_batch(self) -> int | None:
        """Smallest number of samples in a batch; None where any will do."""
        return None

    @property
    def called(self) -> str:
        """Name of a training with it, in its paper and in comparisons."""
        return str(self.component).rpartition("/")[2]

    @property
    def combining(self) -> Combining:
        """Kind of communication, which decides what travels."""
        return "ensemble"

    @property
    def compressing(self) -> CompressionSpec | None:
        """Compression of the global model to the size of a local one; None: there is none."""
        return None

    @property
    def compresses_in_line(self) -> bool:
        """True where compressions take their batches from those of the training."""
        return self.compressing is not None and self.compressing.in_line

    def local_recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe of local models, from that of the experiment."""
        return recipe

    def timetable(self, iterations: int, looks: int) -> RoundSchedule:
        """Return the rounds of `iterations`; without communications there are `looks` of them."""
        return RoundSchedule(iterations=iterations, tau=None, looks=looks)

    def unfit(self, table: RoundSchedule, validation: int) -> str | None:
        """Return why this timetable and number of validation images do not fit; None if they do."""
        if table.tau is None or table.tau <= table.iterations:
            return None
        return (
            f"tau is {table.tau}, and each worker has {table.iterations} local iterations: no "
            "communication would happen before the end. Lower tau, or train longer."
        )

    def travelling(
        self, number: int, state: Weights, parameters: frozenset[str]
    ) -> Collection[str]:
        """Return the names of a local model's tensors that travel after round `number`."""
        return state.keys()

    def memory(self, start: Weights, parameters: frozenset[str]) -> dict[str, Tensor]:
        """Return the memory before the first communication, from the initial weights."""
        return {
            f"{self.remembers}.{name}": start[name].clone()
            for name in sorted(parameters if self.remembers else ())
        }

    def local_loss(
        self, scores: Tensor, hard: Tensor, mean: Tensor | None, weight: float
    ) -> Tensor:
        """Return the loss that a local step minimises.

        Args:
            scores: (N, C) logits of the local model.
            hard: its loss on the true labels.
            mean: (N, C) mean probabilities of the latest models; None before they count.
            weight: of `mean` in this round.
        """
        return diversity_regularised(scores, hard, mean, weight)
