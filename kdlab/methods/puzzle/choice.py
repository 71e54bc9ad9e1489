"""What is chosen: one stand-in for each block, the best for a budget, by an integer program.

Puzzle's assumption is that what replacing one block costs in quality adds up over blocks, as
latency and size do. So the best network is the solution of a small integer program, which HiGHS
(in SciPy) solves exactly.
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
_TRIES = 10  # of budgets, until the whole is measured to be within what was asked
_CLOSER = 0.02  # of the parts: so much less at least in the next try


@dataclass(frozen=True, kw_only=True)
class BlockChoice(Spec):
    """What the student must be, and how its parts are measured.

    faster: times as fast as the teacher, one image on one core; null is not asked for.
    smaller: the teacher's parameters over the student's; null is not asked for.
    engine: that computes the student where it is used. `auto` is ONNX Runtime where it is
        installed, else PyTorch with its batch norms folded.
    images: of the validation set, that say what a block that is replaced costs.
    """

    faster: Annotated[float, _OVER] | None = 2.0
    smaller: Annotated[float, _OVER] | None = None
    engine: Literal["auto", "folded", "onnxruntime", "openvino"] = "auto"
    images: Annotated[int, Range(ge=1)] = 1024

    def cross_faults(self) -> Iterator[Fault]:
        if self.faster is None and self.smaller is None:
            yield Fault(
                "faster", "and smaller are null: nothing is asked for; give one of them"
            )


@dataclass(frozen=True, slots=True)
class Option:
    """One way to have a block."""

    block: int
    name: str  # of the stand-in, or "same"
    # Nats that the teacher's answers move by when this replaces its block alone: the mean of
    # KL(teacher || teacher with it)
    score: float
    latency_ms: Amount  # of one image on one core
    parameters: Count


def best(
    options: Sequence[Option],
    *,
    latency_ms: float | None = None,
    parameters: float | None = None,
) -> list[Option] | None:
    """The option of each block whose scores have the least sum within both budgets.

    Args:
        options: at least one of each block.
        latency_ms: at most, in sum; None is any.
        parameters: at most, in sum; None is any.

    Returns:
        One of each block, in order; None where nothing is within the budgets.
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
    found = milp(
        scores,
        integrality=np.ones(len(options)),
        bounds=Bounds(0, 1),
        constraints=limits,
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    taken = [o for o, x in zip(options, found.x, strict=True) if x > 0.5]
    return sorted(taken, key=lambda o: o.block)


def _scaled(amounts: Sequence[float]) -> tuple[list[float], float]:
    """At most 1, and what they were divided by: tolerances and gaps of the solver are absolute."""
    scale = max(map(abs, amounts)) or 1.0
    return [amount / scale for amount in amounts], scale


def cheapest(options: Sequence[Option], parameters: float | None) -> list[Option] | None:
    """The quickest option of each block within a size; None where nothing is that small."""
    quick = [replace(option, score=option.latency_ms) for option in options]
    found = best(quick, parameters=parameters)
    if found is None:
        return None
    names = {(option.block, option.name) for option in found}
    return [option for option in options if (option.block, option.name) in names]


def within(
    choice: BlockChoice,
    options: Sequence[Option],
    whole_ms: Callable[[Sequence[Option]], tuple[float, float]],
) -> tuple[list[Option], float, float]:
    """The best choice that is as fast as asked for as a whole, or else the quickest by its parts.

    Solved for the sum of the parts; when the whole takes more than they did, for so much less.

    Args:
        choice: what is asked for; its size can be had.
        options: of all blocks, each with "same".
        whole_ms: the teacher's time for an image beside that of a choice, measured.

    Returns:
        The choice, and both times in milliseconds.
    """
    own = [option for option in options if option.name == SAME]
    most = None
    if choice.smaller is not None:
        most = sum(option.parameters for option in own) / choice.smaller
    if choice.faster is None:
        chosen = best(options, parameters=most)
        assert chosen is not None
        return chosen, *whole_ms(chosen)
    quickest = cheapest(options, most)
    assert quickest is not None
    # Sums of parts: of what was too slow, and of what is the least there is
    too_much, least = inf, sum(option.latency_ms for option in quickest)
    budget = sum(option.latency_ms for option in own) / choice.faster
    for _ in range(_TRIES):
        if budget < least:  # between what was too slow and what cannot be less
            budget = least if too_much == inf else (least + too_much) / 2
        chosen = best(options, latency_ms=budget, parameters=most) or quickest
        teacher_ms, student_ms = whole_ms(chosen)
        allowed = teacher_ms / choice.faster
        if student_ms <= allowed or chosen == quickest:
            return chosen, teacher_ms, student_ms
        # What the whole takes beyond its parts does not shrink with them.
        too_much = min(too_much, budget, sum(option.latency_ms for option in chosen))
        budget = too_much - max(student_ms - allowed, _CLOSER * too_much)
    return quickest, *whole_ms(quickest)


def frontier(options: Sequence[Option], steps: int = 12) -> list[tuple[float, float]]:
    """Latency (ms) and score of the best choice for budgets from the quickest to all of it."""
    blocks = {option.block for option in options}

    least, most = (
        sum(pick(o.latency_ms for o in options if o.block == b) for b in blocks)
        for pick in (min, max)
    )
    found = []
    for budget in np.linspace(least, most, steps):
        chosen = best(options, latency_ms=float(budget) * (1 + 1e-9))
        if chosen is not None:
            found.append((sum(o.latency_ms for o in chosen), sum(o.score for o in chosen)))
    return sorted(set(found))
