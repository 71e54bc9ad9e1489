"""How fast this machine trains a network and asks it: measured in a second or two."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import psutil
import torch
from torch.nn.functional import cross_entropy

from kdlab.checks.machine import MachineFacts
from kdlab.cluster.limits import usable_cores
from kdlab.data.images import ImageData
from kdlab.models.model import ModelSpec, parameters
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep, steps_per_second

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
    memory = psutil.Process().memory_info().rss
    with threads_of(recipe), torch.random.fork_rng():
        return _measured(spec, recipe, shape, classes, memory)


def _measured(
    spec: ModelSpec, recipe: Recipe, shape: tuple[int, int, int], classes: int, memory: int
) -> NetworkRates:
    device = torch.device(recipe.chosen_device())
    model = spec.without_weights().build(classes, shape[0]).to(device)
    train_step = TrainStep(recipe, model, model, device)
    views = torch.randint(0, 256, (recipe.batch, *shape), dtype=torch.uint8, device=device)
    labels = torch.randint(0, classes, (recipe.batch,), device=device)

    def step() -> None:
        loss = cross_entropy(train_step.scores(views), labels)
        train_step(loss, 1e-6)
        float(loss.detach())  # waits for a GPU

    @torch.inference_mode()
    def ask() -> None:
        float(train_step.scores(views).sum())

    trained = _rate(step)
    grown = psutil.Process().memory_info().rss - memory
    model.eval()
    return NetworkRates(
        trained=recipe.batch * trained,
        asked=recipe.batch * _rate(ask),
        parameters=parameters(model),
        step_mb=max(0, grown) / 1e6,
    )


def machine_facts() -> MachineFacts:
    """How busy this machine is now."""
    return MachineFacts(load=psutil.getloadavg()[0], cores=usable_cores())


def _rate(act: Callable[[], None]) -> float:
    """Times a second; the best of three looks, as what else the machine does only slows."""
    act()
    best = steps_per_second(act, least=1, seconds=0.0)
    for _ in range(0 if best < 1 / _SLOW_S else 3):
        best = max(best, steps_per_second(act, least=_LEAST, seconds=_SECONDS / 3))
    return best


def views_per_second(data: ImageData, batch: int, seconds: float) -> float:
    """Views that all cores make, asked for as a trainer does, batch after batch."""
    ids, epochs = data.train[:batch], count()
    data.views(ids, 0)  # threads and pages are there from here on
    made = steps_per_second(lambda: data.views(ids, next(epochs)), least=1, seconds=seconds)
    return len(ids) * made


@contextmanager
def threads_of(recipe: Recipe) -> Iterator[None]:
    """PyTorch's threads are those of a recipe while the block goes on."""
    before = torch.get_num_threads()
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
