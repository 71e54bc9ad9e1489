"""How fast this machine trains a network and asks it: measured in a second or two."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from torch.nn.functional import cross_entropy

from kdlab.models.model import ModelSpec
from kdlab.train.recipe import Recipe
from kdlab.train.step import Descent

_SECONDS = 0.8  # of each look, after the first steps
_LEAST = 3  # steps
_SLOW_S = 1.0  # a step that takes longer is looked at once


@dataclass(frozen=True, slots=True)
class NetworkRates:
    """One network on this machine, with the threads and the precision of its recipe."""

    trained: float  # samples/s, forward and backward
    asked: float  # samples/s, forward alone
    parameters: int
    step_mb: float  # of host memory that steps needed beside the weights


def network_rates(
    spec: ModelSpec, recipe: Recipe, shape: tuple[int, int, int], classes: int
) -> NetworkRates:
    """Rates of a network with fresh weights on made-up images.

    Args:
        spec: of the network; weights are not loaded.
        recipe: batch, precision, device and threads.
        shape: (C, H, W) of an image.
        classes: how many.
    """
    before, memory = torch.get_num_threads(), psutil.Process().memory_info().rss
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    try:
        with torch.random.fork_rng():
            return _measured(spec, recipe, shape, classes, memory)
    finally:
        torch.set_num_threads(before)


def _measured(
    spec: ModelSpec,
    recipe: Recipe,
    shape: tuple[int, int, int],
    classes: int,
    memory: int,
) -> NetworkRates:
    device = torch.device(recipe.chosen_device())
    model = spec.without_weights().build(classes, shape[0]).to(device)
    descent = Descent(recipe, model, model, device)
    views = torch.randint(0, 256, (recipe.batch, *shape), dtype=torch.uint8, device=device)
    labels = torch.randint(0, classes, (recipe.batch,), device=device)

    def step() -> None:
        loss = cross_entropy(descent.scores(views), labels)
        descent(loss, 1e-6)
        float(loss.detach())  # waits for a GPU

    @torch.inference_mode()
    def ask() -> None:
        float(descent.scores(views).sum())

    trained = _rate(step)
    grown = psutil.Process().memory_info().rss - memory
    model.eval()
    return NetworkRates(
        trained=recipe.batch * trained,
        asked=recipe.batch * _rate(ask),
        parameters=sum(p.numel() for p in model.parameters()),
        step_mb=max(0, grown) / 1e6,
    )


def _rate(act: Callable[[], None]) -> float:
    """Times a second; the best of three looks, as what else the machine does only slows."""
    act()
    begin = time.perf_counter()
    act()
    once = time.perf_counter() - begin
    best = 1 / max(1e-9, once)
    for _ in range(0 if once > _SLOW_S else 3):
        begin, done = time.perf_counter(), 0
        while done < _LEAST or time.perf_counter() - begin < _SECONDS / 3:
            act()
            done += 1
        best = max(best, done / (time.perf_counter() - begin))
    return best
