"""What every average of local models' weights must do, however it is taken."""

import torch
from torch import Tensor

from kdlab.train.aggregation.model_average import ModelAverage

_WORKERS = 4


def check_aggregation(aggregation: ModelAverage) -> None:
    """Raises AssertionError with the property that does not hold."""
    states = [_state(seed) for seed in range(_WORKERS)]
    kept = [{k: v.clone() for k, v in state.items()} for state in states]
    merged = aggregation.merged(states)
    assert _same(states, kept), "the local models' own weights were changed"
    _fits(merged, states[0])
    _same_in_any_order(aggregation, states, merged)
    for number in (1, _WORKERS):
        alike = aggregation.merged([states[0]] * number)
        assert _close(alike, states[0]), f"{number} equal models do not give that model"


def _state(seed: int) -> dict[str, Tensor]:
    """State of a small network with batch norm: weights, statistics and a counter."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5))
        net(torch.randn(4, 3, 6, 6))  # so that the statistics differ
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def _fits(merged: dict[str, Tensor], like: dict[str, Tensor]) -> None:
    missing, more = like.keys() - merged.keys(), merged.keys() - like.keys()
    assert not missing, f"{sorted(missing)} are missing from what was merged"
    assert not more, f"{sorted(more)} are not in the local models"
    for name, tensor in like.items():
        found = merged[name]
        shape = tuple(tensor.shape)
        assert found.shape == tensor.shape, (
            f"{name} has shape {tuple(found.shape)}, not {shape}"
        )
        assert found.dtype == tensor.dtype, f"{name} is {found.dtype}, not {tensor.dtype}"
        assert bool(torch.isfinite(found).all()), f"{name} has numbers that are not finite"


def _same_in_any_order(
    aggregation: ModelAverage, states: list[dict[str, Tensor]], merged: dict[str, Tensor]
) -> None:
    """Each worker merges by itself, and all must come to the same."""
    other = aggregation.merged(states[::-1])
    assert _close(other, merged), "it depends on the order of the workers"


def _close(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    pairs = [(one[name].double(), two[name].double()) for name in two]
    return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def _same(one: list[dict[str, Tensor]], two: list[dict[str, Tensor]]) -> bool:
    return all(torch.equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in b)
