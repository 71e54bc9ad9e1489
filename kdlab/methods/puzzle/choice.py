"""Choose one stand-in for each block, the best for a budget, by an integer program.

Puzzle assumes that the loss of quality from replacing a block adds up over blocks, as latency and
size do. So the best network solves a small integer program, exactly by HiGHS (in SciPy).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Literal

import numpy as np

from kdlab.codec import Amount, Count
from kdlab.config import Fault, Range
from kdlab.config.spec import Spec
from kdlab.models.block_variants import SAME

_OVER = Range(ge=1.0)
_TRIES = 10  # budgets, until the measured network is fast enough
_CLOSER = 0.02  # share of the budget that each try takes off at least


@dataclass(frozen=True, kw_only=True)
class BlockChoice(Spec):
    """The budget of the student, and how its parts are measured.

    faster: speed-up over the teacher, for one image on one core; null sets no limit.
    smaller: the teacher's parameters over the student's; null sets no limit.
    engine: computes the student where it is used. `auto` is ONNX Runtime where it is
        installed, else PyTorch with its batch norms folded.
    images: of the validation set, for the score of each stand-in.
    """

    faster: Annotated[float, _OVER] | None = 2.0
    smaller: Annotated[float, _OVER] | None = None
    engine: Literal["auto", "folded", "onnxruntime", "openvino"] = "auto"
    images: Annotated[int, Range(ge=1)] = 1024

    def cross_faults(self) -> Iterator[Fault]:
        if self.faster is None and self.smaller is None:
            yield Fault("faster", "and smaller are null: no budget; set one of them")


@dataclass(frozen=True, slots=True)
class Option:
    """A stand-in for a block, or the block itself, with its costs."""

    block: int
    name: str  # of the stand-in, or "same"
    # Nats by which the teacher's answers move where this alone replaces its block: the mean
    # of KL(teacher || teacher with it)
    score: float
    latency_ms: Amount  # of one image on one core
    parameters: Count


def best(
    options: Sequence[Option],
    *,
    latency_ms: float | None = None,
    parameters: float | None = None,
) -> list[Option] | None:
    """Choose one option per block: the least sum of scores within both budgets.

    Args:
        options: at least one of each block.
        latency_ms: the largest sum; None sets no limit.
        parameters: the largest sum; None sets no limit.

    Returns:
        One option of each block, in order; None where none fits the budgets.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    blocks = sorted({option.block for option in options})
    one_each = np.array([[o.block == block for o in options] for block in blocks], float)
    limits = [LinearConstraint(one_each, 1, 1)]
    for amounts, most in (
        ([o.latency_ms for o in options], latency_ms),
        ([o.parameters for o in options], parameters),
    ):
        if most is not None:
            scaled, scale = _scaled(amounts)
            limits.append(LinearConstraint(scaled, -np.inf, most / scale))
    scores, _ = _scaled([option.score for option in options])
    solution = milp(
        scores,
        integrality=np.ones(len(options)),
        bounds=Bounds(0, 1),
        constraints=limits,
        options={"mip_rel_gap": 0.0},
    )
    if solution.x is None:
        return None
    taken = [o for o, x in zip(options, solution.x, strict=True) if x > 0.5]
    return sorted(taken, key=lambda o: o.block)


def _scaled(amounts: Sequence[float]) -> tuple[list[float], float]:
    """Scale to 1 at most, since the solver's tolerances are absolute; return the divisor, too."""
    scale = max(map(abs, amounts)) or 1.0
    return [amount / scale for amount in amounts], scale


def cheapest(options: Sequence[Option], parameters: float | None) -> list[Option] | None:
    """Return the quickest option of each block within a size; None where none is that small."""
    quick = [replace(option, score=option.latency_ms) for option in options]
    quickest = best(quick, parameters=parameters)
    if quickest is None:
        return None
    names = {(option.block, option.name) for option in quickest}
    return [option for option in options if (option.block, option.name) in names]


def within(
    choice: BlockChoice,
    options: Sequence[Option],
    whole_ms: Callable[[Sequence[Option]], tuple[float, float]],
) -> tuple[list[Option], float, float]:
    """Find the best choice whose whole network is fast enough, or else the quickest by parts.

    Solves for the sum of the parts; where the whole network takes longer, for that much less.

    Args:
        choice: the budget; some options fit its size.
        options: of all blocks, each with "same".
        whole_ms: measures the teacher's and a choice's time for an image.

    Returns:
        The choice, and the teacher's and its time in milliseconds.
    """
    unchanged = [option for option in options if option.name == SAME]
    most = None
    if choice.smaller is not None:
        most = sum(option.parameters for option in unchanged) / choice.smaller
    if choice.faster is None:
        chosen = best(options, parameters=most)
        assert chosen is not None
        return chosen, *whole_ms(chosen)
    quickest = cheapest(options, most)
    assert quickest is not None
    # Sums of parts: of the fastest network that was too slow, and of the quickest options
    too_much, least = inf, sum(option.latency_ms for option in quickest)
    budget = sum(option.latency_ms for option in unchanged) / choice.faster
    for _ in range(_TRIES):
        if budget < least:  # between too slow and the least
            budget = least if too_much == inf else (least + too_much) / 2
        chosen = best(options, latency_ms=budget, parameters=most) or quickest
        teacher_ms, student_ms = whole_ms(chosen)
        allowed = teacher_ms / choice.faster
        if student_ms <= allowed or chosen == quickest:
            return chosen, teacher_ms, student_ms
        # The time of the whole network beyond its parts does not shrink with them.
        too_much = min(too_much, budget, sum(option.latency_ms for option in chosen))
        budget = too_much - max(student_ms - allowed, _CLOSER * too_much)
    return quickest, *whole_ms(quickest)


def frontier(options: Sequence[Option], steps: int = 12) -> list[tuple[float, float]]:
    """Return latency (ms) and score of the best choices, from the quickest to the slowest."""
    blocks = {option.block for option in options}
    least, most = (
        sum(pick(o.latency_ms for o in options if o.block == b) for b in blocks)
        for pick in (min, max)
    )
    points = []
    for budget in np.linspace(least, most, steps):
        chosen = best(options, latency_ms=float(budget) * (1 + 1e-9))
        if chosen is not None:
            points.append((sum(o.latency_ms for o in chosen), sum(o.score for o in chosen)))
    return sorted(set(points))
