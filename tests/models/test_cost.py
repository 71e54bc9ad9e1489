"""A model's cost: counts, and a latency in the digits on which turns agree."""

import time

import pytest
import torch
from torch import nn

from kdlab.models.cost import cost_of, latency_ms, rounded


@pytest.mark.parametrize(
    ("turns", "shown"),
    [
        ([1.234, 1.235, 1.236], 1.24),
        ([1.58, 1.55, 1.61], 1.6),
        ([19.8, 10.5, 12.1], 10.0),
        ([161.2, 164.0, 158.0], 160.0),
    ],
)
def test_no_more_digits_are_said_than_turns_agree_on(turns, shown):
    assert rounded(turns) == shown


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, view):
        self.calls += 1
        time.sleep(0.02)  # stands for waiting for the processor
        return view.float().flatten(1)


def test_waiting_for_the_processor_is_not_counted_and_threads_are_as_before():
    threads, model = torch.get_num_threads(), Counting()
    took = latency_ms(model, torch.zeros((1, 3, 4, 4), dtype=torch.uint8))
    assert torch.get_num_threads() == threads
    assert 0 < took < 20
    assert model.calls > 9


def test_parameters_and_operations_are_counted():
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    cost = cost_of(nn.Sequential(_AsFloat(), net), (3, 4, 4))
    assert (cost.parameters, cost.gflops) == (490, pytest.approx(2 * 480e-9))


class _AsFloat(nn.Module):
    def forward(self, view):
        return view.float()
