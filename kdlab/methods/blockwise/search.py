"""Architecture search during distillation, in rounds of weights and of the architecture.

Every `every` steps a round trains the architecture instead of the weights (Pipe-BD, section
VI-A: each round is one training step): two paths of each place are drawn, and Adam moves their
probabilities. A block's loss is then multiplied by its expected work, so that a cheaper block
wins against one that is hardly better (ProxylessNAS, the authors' option mul#log; beta 0
leaves it out).

    loss * (log(expected work) / log(work of the teacher's block)) ^ beta
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from torch import Tensor, nn

from kdlab.config.spec import NOT_NEGATIVE, POSITIVE, SHARE, Range, Spec
from kdlab.errors import ModelError
from kdlab.methods.blockwise.pairs import BlockLoss, BlockPair
from kdlab.models.proxyless import MixedBlock, mixed_blocks
from kdlab.train.optimizers import make_optimizer
from kdlab.train.recipe import OptimizerState, Recipe, Stepper

SearchRound = Literal["weights", "architecture"]


@dataclass(frozen=True, kw_only=True)
class ArchitectureSearch(Spec):
    """How the architecture parameters learn beside the weights.

    every: one of so many steps is a round of the architecture.
    warm_up: share of all steps before the first one.
    lr: of Adam on the architecture parameters (betas 0 and 0.999).
    work_power: exponent of the expected work; 0 leaves it out.
    """

    every: Annotated[int, Range(ge=2)] = 5
    warm_up: Annotated[float, SHARE] = 0.25
    lr: Annotated[float, POSITIVE] = 1e-3
    work_power: Annotated[float, NOT_NEGATIVE] = 3.6

    def round_of(self, step: int, of_steps: int) -> SearchRound:
        """Return the round of a step, which is counted over all epochs."""
        if step < self.warm_up * of_steps:
            return "weights"
        return "architecture" if step % self.every == self.every - 1 else "weights"


class Alternating:
    """The recipe's optimiser for weights and Adam for the architecture, taking turns.

    Satisfies `recipe.Stepper`; `round` names the one that steps.
    """

    def __init__(
        self, recipe: Recipe, search: ArchitectureSearch, block: nn.Module
    ) -> None:
        self._mixed = mixed_blocks(block)
        alpha_ids = {id(mixed.alpha) for mixed in self._mixed}
        self.round: SearchRound = "weights"
        self._weights = make_optimizer(
            recipe, _Only(block, lambda p: id(p) not in alpha_ids)
        )
        alphas = [p for p in block.parameters() if id(p) in alpha_ids]
        self._alphas = torch.optim.Adam(alphas, lr=search.lr, betas=(0.0, 0.999))
        # The loop sets learning rates of these; Adam keeps its own.
        self.param_groups: list[dict[str, object]] = self._weights.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._weights.zero_grad(set_to_none)
        self._alphas.zero_grad(set_to_none)

    def step(self) -> None:
        if self.round == "weights":
            self._weights.step()
            return
        before = [block.drawn_share() for block in self._mixed]
        self._alphas.step()
        for block, share in zip(self._mixed, before, strict=True):
            block.keep_share(share)

    def state_dict(self) -> OptimizerState:
        """Merge both optimisers' states, weights first."""
        weights = cast(OptimizerState, self._weights.state_dict())
        alphas = cast(OptimizerState, self._alphas.state_dict())
        shift = _count(weights["param_groups"])
        return {
            "state": weights["state"] | {shift + k: v for k, v in alphas["state"].items()},
            "param_groups": [*weights["param_groups"], *alphas["param_groups"]],
        }

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        both = cast(OptimizerState, state_dict)
        *groups, last = both["param_groups"]
        shift, state = _count(groups), both["state"]
        self._weights.load_state_dict(
            {"state": {k: v for k, v in state.items() if k < shift}, "param_groups": groups}
        )
        self._alphas.load_state_dict(
            {
                "state": {k - shift: v for k, v in state.items() if k >= shift},
                "param_groups": [last],
            }
        )
        self.param_groups = self._weights.param_groups


def _count(groups: Sequence[dict[str, object]]) -> int:
    """Return the number of parameters in these groups."""
    return sum(len(cast(list[int], group["params"])) for group in groups)


class _Only(nn.Module):
    """Some of a module's parameters, for `make_optimizer`."""

    def __init__(self, module: nn.Module, belongs: Callable[[nn.Parameter], bool]) -> None:
        super().__init__()
        for number, parameter in enumerate(module.parameters()):
            if belongs(parameter):
                self.register_parameter(f"p{number}", parameter)


@dataclass(slots=True)
class WorkAware:
    """A block's loss, times its expected work in rounds of the architecture."""

    loss: BlockLoss
    mixed: list[MixedBlock]
    reference: float  # multiplications of the teacher's block
    power: float
    architecture: bool = False

    def __call__(self, student: Tensor, teacher: Tensor) -> Tensor:
        loss = self.loss(student, teacher)
        if not self.architecture or not self.power:
            return loss
        work = torch.stack([block.expected_work() for block in self.mixed]).sum()
        factor = (work.clamp_min(2.0).log() / math.log(self.reference)) ** self.power
        return loss * factor


class SearchRounds:
    """Sets the round of each step and draws its paths, the same on all devices.

    The losses of the pairs are wrapped; `works` are multiplications of each teacher block for
    one image, `of_steps` are those of all epochs.
    """

    def __init__(
        self,
        search: ArchitectureSearch,
        pairs: Sequence[BlockPair],
        works: Sequence[float],
        *,
        seed: int,
        of_steps: int,
    ) -> None:
        self.search, self.seed, self.of_steps = search, seed, of_steps
        self.mixed = [mixed_blocks(pair.student) for pair in pairs]
        if not any(self.mixed):
            raise ModelError(
                "method.search is set and the student has nothing to choose from; use a "
                "supernet, such as models/proxyless_supernet."
            )
        self.losses: list[WorkAware] = []
        for pair, mixed, work in zip(pairs, self.mixed, works, strict=True):
            if mixed:
                aware = WorkAware(pair.loss, mixed, max(work, 3.0), search.work_power)
                pair.loss = aware
                self.losses.append(aware)

    def optimizer(self, recipe: Recipe, block: nn.Module) -> Stepper:
        """Make a student block's optimiser: alternating where it has candidates."""
        if mixed_blocks(block):
            return Alternating(recipe, self.search, block)
        return make_optimizer(recipe, block)

    def begin(self, step: int, optimizers: Sequence[Stepper]) -> None:
        """Set up a step, which is counted over all epochs."""
        turn = self.search.round_of(step, self.of_steps)
        for loss in self.losses:
            loss.architecture = turn == "architecture"
        for optimizer in optimizers:
            if isinstance(optimizer, Alternating):
                optimizer.round = turn
        chance = torch.Generator().manual_seed((self.seed * 1_000_003 + step) % 2**63)
        for mixed in self.mixed:
            for block in mixed:
                block.draw(chance, architecture=turn == "architecture")
