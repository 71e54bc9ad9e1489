"""Cost of a deployed model: parameters, bytes, operations, and latency of one image."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from kdlab.models.model import parameters

_TURN_S = 0.1
_MOST_S = 2.0  # until three turns agree


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one image."""

    parameters: int  # of the network
    megabytes: float  # of its weights and buffers
    gflops: float  # forward, a multiplication with its addition as two operations
    latency_ms: float  # of one core of this machine, batch of one


def cost_of(model: nn.Module, shape: Sequence[int]) -> Cost:
    """Measure the cost of one (C, H, W) image for a model of uint8 views in eval mode, on a CPU."""
    view = torch.zeros((1, *shape), dtype=torch.uint8)
    state = model.state_dict().values()
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(view)
    return Cost(
        parameters=parameters(model),
        megabytes=sum(t.numel() * t.element_size() for t in state) / 1e6,
        gflops=float(counter.get_total_flops()) / 1e9,
        latency_ms=latency_ms(model, view),
    )


@torch.inference_mode()
def latency_ms(model: nn.Module, view: Tensor) -> float:
    """Measure the median latency of turns on one thread, in the digits in which they agree.

    Other load only adds to it, so it is CPU time of the thread, which on a busy machine is a fifth
    of the clock's, and of each turn the quickest tenth.
    """
    threads, turns = torch.get_num_threads(), list[float]()
    torch.set_num_threads(1)
    try:
        for _ in range(3):
            model(view)
        end = time.monotonic() + _MOST_S
        while len(turns) < 3 or (_digits(turns[-3:]) < 2 and time.monotonic() < end):
            turns.append(_turn(model, view))
    finally:
        torch.set_num_threads(threads)
    return rounded(turns[-3:])


def _turn(model: nn.Module, view: Tensor) -> float:
    took, end = list[float](), time.monotonic() + _TURN_S
    while time.monotonic() < end or len(took) < 3:
        begin = time.thread_time()
        model(view)
        took.append(1e3 * (time.thread_time() - begin))
    return sorted(took)[len(took) // 10]


def rounded(turns: Sequence[float]) -> float:
    """Round the median of turns to the digits in which they agree."""
    return float(f"{median(turns):.{_digits(turns)}g}")


def _digits(turns: Sequence[float]) -> int:
    apart = (max(turns) - min(turns)) / (median(turns) or 1.0)  # of a coarse clock
    return 3 if apart < 0.01 else 2 if apart < 0.1 else 1
