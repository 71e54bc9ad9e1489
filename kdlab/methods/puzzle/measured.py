"""Measure stand-ins: how far the teacher's answers move, and their latency."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from kdlab.errors import BadInput
from kdlab.models.engines import Engine, Predict, available_engines
from kdlab.models.engines.choose import first_line

_TIMED_S = 0.25  # for each network
_LEAST = 7  # rounds


@torch.inference_mode()
def scores(
    teachers: Sequence[nn.Module],
    variants: Sequence[Mapping[str, nn.Module]],
    batches: Iterable[Tensor],
    alive: Callable[[], None] = lambda: None,
) -> list[dict[str, float]]:
    """Measure how far the teacher's answers move with one block replaced (replace-1-block).

    Args:
        teachers: the teacher's blocks, in evaluation mode.
        variants: stand-ins of each block, in evaluation mode.
        batches: normalised views (N, C, H, W) on the device of the blocks.
        alive: called after each stand-in.

    Returns:
        The mean of KL(teacher || teacher with it) of each stand-in, in nats.
    """
    sums = [dict.fromkeys(of_block, 0.0) for of_block in variants]
    seen = 0
    for views in batches:
        inputs = [views]
        for block in teachers:
            inputs.append(block(inputs[-1]))
        right = inputs.pop().log_softmax(1)
        seen += len(views)
        for number, of_block in enumerate(variants):
            for name, variant in of_block.items():
                out = variant(inputs[number])
                for later in teachers[number + 1 :]:
                    out = later(out)
                moved = kl_div(out.log_softmax(1), right, reduction="sum", log_target=True)
                sums[number][name] += float(moved)
                alive()
    return [{name: s / seen for name, s in of_block.items()} for of_block in sums]


def engine_of(name: str) -> Engine:
    """Return the fp32 engine of this name; `auto` is ONNX Runtime, or else `folded`.

    Raises:
        BadInput: it is not installed on this machine.
    """
    engines = {e.name: e for e in available_engines("cpu") if e.precision == "fp32"}
    if name == "auto":
        name = "onnxruntime" if "onnxruntime" in engines else "folded"
    if name not in engines:
        raise BadInput(
            f"method.engine is {name}, which is not installed; installed are "
            f"{', '.join(engines)}. Install others: pip install 'kdlab[onnx]' or 'kdlab[openvino]'."
        )
    return engines[name]


def prepared(engine: Engine, network: nn.Module, views: Tensor, what: str) -> Predict:
    """Prepare a network on an engine with one thread.

    Raises:
        BadInput: the engine cannot compute it.
    """
    try:
        return engine.prepare(network.eval(), views, 1)
    except Exception as error:  # libraries raise all kinds
        raise BadInput(
            f"{engine.name} cannot compute {what}: {first_line(error)}. Set method.engine=folded "
            "to measure in PyTorch, or leave that stand-in out of student.variants."
        ) from error


@torch.inference_mode()
def latencies_ms(
    asks: Sequence[Predict],
    views: Sequence[Tensor],
    alive: Callable[[], None] = lambda: None,
) -> list[float]:
    """Time one call of each network on one thread, in turns; return medians in milliseconds.

    Args:
        asks: networks from `prepared`.
        views: the input of each.
        alive: called before each round.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    taken: list[list[float]] = [[] for _ in asks]
    try:
        for ask, input_views in zip(asks, views, strict=True):  # warm
            for _ in range(3):
                ask(input_views)
        end = time.perf_counter() + _TIMED_S * len(asks)
        while len(taken[0]) < _LEAST or time.perf_counter() < end:
            alive()
            for ask, input_views, seconds in zip(asks, views, taken, strict=True):
                begin = time.perf_counter()
                ask(input_views)
                seconds.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return [1e3 * median(seconds) for seconds in taken]
