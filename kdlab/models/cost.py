"""What a model costs where it is used: parameters, bytes, operations, time for one image."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from kdlab.models.model import parameters

_TIMED_S = 0.3


@dataclass(frozen=True, slots=True)
class Cost:
    """What one image costs."""

    parameters: int  # of the network
    megabytes: float  # of its weights and buffers
    gflops: float  # forward, a multiplication with its addition as two operations
    latency_ms: float  # on one core of this machine, batch of one, the median


def cost_of(model: nn.Module, shape: Sequence[int]) -> Cost:
    """What one image (C, H, W) costs a model of uint8 views in eval mode on the CPU."""
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
    """Median on one thread, after a warm-up."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(3):
            model(view)
        took, end = list[float](), time.perf_counter() + _TIMED_S
        while time.perf_counter() < end or len(took) < 5:
            begin = time.perf_counter()
            model(view)
            took.append(1e3 * (time.perf_counter() - begin))
    finally:
        torch.set_num_threads(threads)
    return median(took)
