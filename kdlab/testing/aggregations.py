"""Conformance tests of weight aggregations: properties of every average of local models."""

import torch
from torch import Tensor

from kdlab.train.aggregation.weights import MergeInputs, WeightAggregation

_WORKERS = 4
_TRAINED = frozenset(("0.weight", "0.bias", "1.weight", "1.bias"))


def check_aggregation(aggregation: WeightAggregation) -> None:
    """Check an aggregation; raise AssertionError with the property that does not hold."""
    states = [_state(seed) for seed in range(_WORKERS)]
    originals = [{k: v.clone() for k, v in state.items()} for state in states]
    memory: dict[str, Tensor] = aggregation.memory(states[0], _TRAINED)
    for number in range(3):  # the later ones have a memory
        merged, after = _merge(aggregation, states, memory, number)
        assert _same(states, originals), "the local models' own weights were changed"
        _fits(merged, states[0])
        flipped, _ = _merge(aggregation, states[::-1], memory, number, local=states[0])
        assert _close(flipped, merged), "it depends on the order of the workers"
        memory = after
    if aggregation.encodes:
        sent, _ = aggregation.encode(states[1], memory, _TRAINED)
        _fits(aggregation.decode(sent, memory), states[1])
    for number in (1, _WORKERS):
        begun = aggregation.memory(states[0], _TRAINED)
        alike, _ = _merge(aggregation, [states[0]] * number, begun, 0)
        assert _close(alike, states[0]), f"{number} equal models do not give that model"


def _merge(
    aggregation: WeightAggregation,
    states: list[dict[str, Tensor]],
    memory: dict[str, Tensor],
    number: int,
    local: dict[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Communicate once; return the global model and the memory."""
    before = {name: tensor.clone() for name, tensor in memory.items()}
    merged = aggregation.merge(
        MergeInputs(
            states=states,
            local=local or states[0],
            memory=memory,
            parameters=_TRAINED,
            round=number,
            rounds=3,
            error=lambda weights: float(weights["0.bias"].double().sum()),
        )
    )
    assert _close(memory, before), "the memory was changed in place"
    _fits(merged.weights, states[0])
    return merged.global_weights or merged.weights, merged.memory


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
        value = merged[name]
        shape = tuple(tensor.shape)
        assert value.shape == tensor.shape, (
            f"{name} has shape {tuple(value.shape)}, not {shape}"
        )
        assert value.dtype == tensor.dtype, f"{name} is {value.dtype}, not {tensor.dtype}"
        assert bool(torch.isfinite(value).all()), f"{name} has numbers that are not finite"


def _close(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    pairs = [(first[name].double(), second[name].double()) for name in second]
    return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def _same(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a[k], b[k]) for a, b in pairs for k in b)
