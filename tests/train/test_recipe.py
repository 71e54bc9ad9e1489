import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kdlab.errors import SpecError
from kdlab.train.recipe import Recipe, lr_at, make_optimizer


def rates(recipe, steps=10):
    return [lr_at(recipe, s / steps, steps) for s in range(recipe.epochs * steps)]


def test_cosine_is_torchs():
    recipe = Recipe(epochs=4, lr=0.2, schedule="cosine")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.2)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for ours in rates(recipe):
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        theirs.step()


def test_step_drops_at_epochs():
    recipe = Recipe(epochs=4, lr=1.0, schedule="step", drop_lr_at=(2, 3))
    assert rates(recipe)[::10] == pytest.approx([1.0, 1.0, 0.1, 0.01])


def test_warmup_rises_linearly_and_the_first_step_trains():
    recipe = Recipe(epochs=4, lr=1.0, schedule="constant", warmup_epochs=0.5)
    assert rates(recipe)[:6] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


@given(
    st.sampled_from(["constant", "cosine"]),
    st.integers(2, 9),
    st.floats(0, 1),
    st.integers(1, 30),
)
def test_rates_stay_in_range(schedule, epochs, warmup, steps):
    recipe = Recipe(epochs=epochs, lr=0.5, schedule=schedule, warmup_epochs=warmup)
    assert all(0 <= rate <= 0.5 + 1e-12 for rate in rates(recipe, steps))


def test_biases_and_norms_do_not_decay():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    decayed, plain = make_optimizer(Recipe(), net).param_groups
    assert [p.ndim for p in decayed["params"]] == [4]
    assert {p.ndim for p in plain["params"]} == {1}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (5e-4, 0.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schedule": "step"}, "drop_lr_at"),
        ({"drop_lr_at": (3,)}, "no effect"),
        ({"batch": 1}, "batch"),
        ({"lr": 0.0}, "lr"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_contradictions_are_faults(values, words):
    with pytest.raises(SpecError, match=words):
        Recipe(**values)
