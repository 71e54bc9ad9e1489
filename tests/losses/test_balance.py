"""Teachers of unlike spread: standardised overall, by channel, and after a rotation (PHI-S)."""

import numpy as np
import pytest
import torch

from kdlab.features.balance import Balance, core_of, hadamard, moments
from kdlab.features.cosine import Cosine
from kdlab.features.hint import Hint

CHANCE = np.random.default_rng(3)
MIXED = CHANCE.normal(size=(400, 12)) @ CHANCE.normal(size=(12, 12)) * 7 + 3


@pytest.fixture
def mixed_moments():
    batches = torch.from_numpy(MIXED).split(150)
    return sum(
        moments(batch.reshape(-1, 5, 12) if len(batch) == 150 else batch)
        for batch in batches
    )


def test_moments_are_those_of_all_batches_together(mixed_moments):
    assert float(mixed_moments[-1, -1]) == len(MIXED)
    np.testing.assert_allclose(mixed_moments[-1, :-1], MIXED.sum(0), rtol=1e-9)
    np.testing.assert_allclose(mixed_moments[:-1, :-1], MIXED.T @ MIXED, rtol=1e-9)


def test_of_maps_every_place_counts():
    maps = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    statistics = moments(maps)
    assert float(statistics[-1, -1]) == 6 * 9
    balanced = Balance(statistics, "channel")(maps.float())
    assert balanced.shape == maps.shape
    assert torch.allclose(balanced.mean((0, 2, 3)), torch.zeros(4), atol=1e-5)
    assert torch.allclose(balanced.std((0, 2, 3), unbiased=False), torch.ones(4), atol=1e-4)


@pytest.mark.parametrize("by", ["overall", "channel", "phi"])
def test_what_is_balanced_has_no_mean_and_a_spread_of_one(mixed_moments, by):
    balanced = Balance(mixed_moments, by)(torch.from_numpy(MIXED).float()).double()
    np.testing.assert_allclose(balanced.mean(0), 0, atol=1e-5)
    assert float(balanced.square().mean()) == pytest.approx(1, rel=1e-5)
    if by != "overall":
        np.testing.assert_allclose(balanced.square().mean(0), 1, rtol=1e-4)
    if by != "channel":  # distances are kept, up to one factor
        both = (torch.from_numpy(MIXED), balanced)
        apart = [torch.cdist(x[:9], x[:9]) for x in both]
        ratio = apart[1][0, 1] / apart[0][0, 1]
        np.testing.assert_allclose(apart[1], apart[0] * ratio, atol=1e-4)


def test_a_channel_that_never_changes_does_no_harm():
    statistics = moments(torch.ones(5, 4))
    for by in ("overall", "channel", "phi"):
        assert torch.isfinite(Balance(statistics, by)(torch.ones(2, 4))).all()
    # One that was silent over all images, and answers later: it is left out
    seen = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    seen[:, 1] = 0.37
    later = seen[:8].clone()
    later[:, 1] = 0.4
    balanced = Balance(moments(seen), "channel")(later)
    assert balanced[:, 1].abs().max() == 0
    assert 0.3 < float(balanced[:, 2].abs().max()) < 5


@pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 48, 192, 320, 384, 576])
def test_a_hadamard_matrix_turns_evenly(order):
    turn = hadamard(order)
    assert torch.allclose(turn @ turn.T, torch.eye(order, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(turn.abs(), torch.full_like(turn, order**-0.5))


def test_widths_of_published_networks_have_one_and_others_are_a_sentence():
    assert all(map(core_of, (384, 768, 1024, 1152, 1280, 1408, 1536, 2048, 4096)))
    assert "Hadamard matrix of order 6" in Hint(balance="phi").misfit((4,), (6,))
    assert not Hint(balance="phi").misfit((4,), (8,))
    assert not Hint(balance="channel").misfit((4,), (6,))


def test_a_projector_of_two_layers_is_there_at_any_width():
    vectors = Cosine(projector="mlp").projection((4,), (8,))
    assert [type(part).__name__ for part in vectors] == ["Linear", "GELU", "Linear"]
    assert vectors(torch.zeros(3, 4)).shape == (3, 8)
    same = Hint(projector="mlp").projection((4, 2, 2), (4, 2, 2))
    assert same(torch.zeros(3, 4, 5, 5)).shape == (3, 4, 5, 5)
    assert len(list(same.parameters())) == 4
