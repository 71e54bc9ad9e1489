"""Speed of this machine in training and inference of a network, measured in a second or two."""

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
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec, check_fit, parameters
from kdlab.train.recipe import Recipe
from kdlab.train.step import TrainStep, steps_per_second

_SECONDS = 0.8  # of each measurement, after the first steps
_LEAST = 3  # steps
_SLOW_S = 1.0  # a longer step is measured once


@dataclass(frozen=True, slots=True)
class NetworkRates:
    """Rates of a network on this machine, with the threads and the precision of its recipe."""

    trained: float  # samples/s, forward and backward
    asked: float  # samples/s, forward alone
    parameters: int
    step_mb: float  # of host memory that steps need besides the weights


def network_rates(
    spec: ModelSpec, recipe: Recipe, shape: tuple[int, int, int], classes: int
) -> NetworkRates:
    """Measure the rates of a network with fresh weights on random images.

    Args:
        spec: of the network; weights are not loaded.
        recipe: batch, precision, device and threads.
        shape: (C, H, W) of an image.
        classes: their number.

    Raises:
        ModelError: the network does not fit the shape, the classes, or this memory.
    """
    memory = psutil.Process().memory_info().rss
    with threads_of(recipe), torch.random.fork_rng():
        try:
            return _measured(spec, recipe, shape, classes, memory)
        except (MemoryError, RuntimeError) as error:  # PyTorch is out of memory
            raise ModelError(
                f"{spec.component} cannot be measured: {error}. A smaller network or train.batch "
                "takes less memory."
            ) from error


def _measured(
    spec: ModelSpec, recipe: Recipe, shape: tuple[int, int, int], classes: int, memory: int
) -> NetworkRates:
    device = torch.device(recipe.chosen_device())
    model = spec.without_weights().build(classes, shape[0]).to(device)
    check_fit(model, shape, classes, "the network")
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
    """Return the load and the usable cores of this machine."""
    return MachineFacts(load=psutil.getloadavg()[0], cores=usable_cores())


def _rate(act: Callable[[], None]) -> float:
    """Return calls a second: the best of three measurements, as other work only slows."""
    act()
    best = steps_per_second(act, least=1, seconds=0.0)
    for _ in range(0 if best < 1 / _SLOW_S else 3):
        best = max(best, steps_per_second(act, least=_LEAST, seconds=_SECONDS / 3))
    return best


def views_per_second(data: ImageData, batch: int, seconds: float) -> float:
    """Return views/s on all cores, requested batch after batch as a trainer does."""
    ids, epochs = data.train[:batch], count()
    data.views(ids, 0)  # starts threads, loads pages
    rate = steps_per_second(lambda: data.views(ids, next(epochs)), least=1, seconds=seconds)
    return len(ids) * rate


@contextmanager
def threads_of(recipe: Recipe) -> Iterator[None]:
    """Run the block with the PyTorch threads of a recipe."""
    before = torch.get_num_threads()
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
