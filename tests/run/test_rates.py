"""Rates of a network on this machine: what is measured, how often, and without traces."""

import numpy as np
import pytest
import torch

from kdlab.config.check import construct
from kdlab.config.load import from_dict
from kdlab.errors import ModelError
from kdlab.models.model import ModelSpec, parameters
from kdlab.models.patch_net import PatchNet
from kdlab.run import rates
from kdlab.run.rates import network_rates, threads_of, views_per_second
from kdlab.train.recipe import Recipe

RECIPE = Recipe(batch=8, device="cpu", threads=1)


@pytest.fixture
def looks(monkeypatch):
    """Set the speed that each measurement finds; record (least, seconds) of each."""
    asked, speeds = [], []

    def scripted(step, *, least, seconds):
        step()
        asked.append((least, seconds))
        return speeds.pop(0) if len(speeds) > 1 else speeds[0]

    monkeypatch.setattr(rates, "steps_per_second", scripted)
    return asked, speeds


def test_the_best_of_three_looks_counts_as_others_only_slow_a_step(looks):
    asked, speeds = looks
    speeds += [5.0, 20.0, 30.0, 25.0]
    acts = []
    assert rates._rate(lambda: acts.append(1)) == 30.0
    assert [least for least, _ in asked] == [1, 3, 3, 3]
    assert len(acts) == 5  # the first one warms up


def test_a_step_of_more_than_a_second_is_looked_at_once(looks):
    asked, speeds = looks
    speeds += [0.5, 100.0]
    assert rates._rate(lambda: None) == 0.5
    assert asked == [(1, 0.0)]


def test_a_network_is_measured_in_samples_and_its_weights_are_not_wanted(looks):
    _, speeds = looks
    speeds.append(4.0)
    spec = PatchNet(patch=4, width=8, weights="nowhere.safetensors")
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    measured = network_rates(spec, RECIPE, (3, 8, 8), 5)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (measured.trained, measured.asked) == (8 * 4.0, 8 * 4.0)
    assert measured.parameters == parameters(PatchNet(patch=4, width=8).build(5, 3))
    assert measured.step_mb >= 0
    assert torch.get_num_threads() == threads


def test_each_batch_of_views_is_of_another_epoch(looks):
    _, speeds = looks
    speeds.append(7.0)
    asked = []

    class Data:
        train = np.arange(100)

        def views(self, ids, epoch):
            asked.append((len(ids), epoch))

    assert views_per_second(Data(), 30, 0.5) == 30 * 7.0
    assert asked == [(30, 0), (30, 0)]  # threads and pages first
    assert looks[0] == [(1, 0.5)]


def test_threads_are_put_back_whatever_happens():
    before = torch.get_num_threads()

    def fails():
        with threads_of(Recipe(threads=before + 1)):
            raise ValueError(torch.get_num_threads())

    with pytest.raises(ValueError, match=str(before + 1)):
        fails()
    assert torch.get_num_threads() == before
    with threads_of(Recipe()):
        assert torch.get_num_threads() == before  # PyTorch's own choice


def test_what_memory_does_not_hold_is_refused():
    vast = Recipe(batch=10**18, device="cpu", threads=1)
    with pytest.raises(
        ModelError, match=r"Storage size.* A smaller network or train\.batch"
    ):
        network_rates(PatchNet(patch=4, width=8), vast, (3, 8, 8), 5)


def test_a_network_for_images_of_another_size_is_refused():
    spec = construct(
        ModelSpec, from_dict({"type": "timm/vit_tiny_patch16_224"}, "the network")
    )
    with pytest.raises(ModelError, match=r"cannot take images of 3×96×96: .*data\.size"):
        network_rates(spec, RECIPE, (3, 96, 96), 5)
