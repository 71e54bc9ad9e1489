"""Batch norm over a group in half precision is that of all rows, up to its rounding."""

import pytest
import torch
from threaded_ranks import in_threads
from torch import nn

from kdlab.train.sync_norm import synchronise

SHARES = (7, 5)


def views(dtype):
    drawn = torch.randn(sum(SHARES), 4, 6, 6, generator=torch.Generator().manual_seed(0))
    return (drawn * 3 + 5).to(dtype)


def weights():
    drawn = torch.randn(sum(SHARES), 4, 6, 6, generator=torch.Generator().manual_seed(1))
    return drawn.double()


def norm(dtype=torch.float32):
    layer = nn.BatchNorm2d(4, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.5, 1.0, 1.5, 2.0]))
        layer.bias.copy_(torch.tensor([0.0, 1.0, -1.0, 0.5]))
    return layer


def trained(layer, rows, scale):
    """(output, gradient of the input, of the weight, of the bias, both statistics)."""
    rows = rows.clone().requires_grad_()
    output = layer(rows)
    (output.double() * scale).sum().backward()
    return (
        output.detach(),
        rows.grad,
        layer.weight.grad,
        layer.bias.grad,
        layer.running_mean,
        layer.running_var,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_two_devices_norm_half_precision_rows_as_one_does_in_double(dtype):
    expected = trained(norm(torch.float64), views(dtype).double(), weights())
    layers = [norm() for _ in SHARES]

    def rank(number):
        layer = synchronise(layers[number], torch.distributed.group.WORLD)
        start = sum(SHARES[:number])
        rows = slice(start, start + SHARES[number])
        return trained(layer, views(dtype)[rows], weights()[rows])

    first, second = in_threads(2, rank)
    epsilon = torch.finfo(dtype).eps
    for number, wanted in enumerate(expected[:2]):  # of the rows of each
        joined = torch.cat([first[number], second[number]])
        assert joined.dtype == dtype
        torch.testing.assert_close(
            joined.double(), wanted, rtol=4 * epsilon, atol=16 * epsilon
        )
    for number in (2, 3):  # of all rows, in two parts
        joined = (first[number] + second[number]).double()
        torch.testing.assert_close(
            joined, expected[number], rtol=epsilon, atol=64 * epsilon
        )
    for number in (4, 5):  # statistics have float32's digits whatever the rows have
        assert torch.equal(first[number], second[number])
        torch.testing.assert_close(
            first[number].double(), expected[number], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_in_full_precision_have_the_bits_that_they_had(dtype, monkeypatch):
    """Kept results of before stand for this code (benchmarks/results/without_effect.csv)."""

    def two_devices(layers):
        def rank(number):
            layer = synchronise(layers[number], torch.distributed.group.WORLD)
            return trained(layer, views(dtype)[:7], weights()[:7])

        return in_threads(2, rank)

    now = two_devices([norm(dtype) for _ in SHARES])
    update_stats = torch.batch_norm_update_stats

    def as_before(rows, mean, variance, momentum):
        assert not mean.any()
        return update_stats(rows, None, None, momentum)

    monkeypatch.setattr(torch, "batch_norm_update_stats", as_before)
    before = two_devices([norm(dtype) for _ in SHARES])
    for rank, was in zip(now, before, strict=True):
        for tensor, old in zip(rank, was, strict=True):
            assert torch.equal(tensor, old)
