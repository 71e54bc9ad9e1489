import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.scheduler import create_scheduler_v2

from kdlab.errors import SpecError
from kdlab.models.timm import TimmModel
from kdlab.train.optimizers import make_optimizer
from kdlab.train.recipe import Recipe
from kdlab.train.schedules import lr_at, plateau_drops
from kdlab.train.step import TrainStep


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


def test_layers_of_a_timm_model_learn_at_rates_of_their_own():
    recipe = Recipe(optimizer="timm/adamw", layer_decay=0.5, lr=0.1)
    model = TimmModel(variant="resnet18").build(10, 3)
    train_step = TrainStep(recipe, model, model, torch.device("cpu"))
    train_step(model(torch.zeros((2, 3, 32, 32), dtype=torch.uint8)).sum(), lr=0.2)
    group_rates = {round(group["lr"], 9) for group in train_step.optimizer.param_groups}
    assert max(group_rates) == 0.2
    assert len(group_rates) > 3
    assert {round(0.2 * 0.5**k, 9) for k in range(4)} <= group_rates
    assert {g["weight_decay"] for g in train_step.optimizer.param_groups} == {0.0, 5e-4}


def test_biases_and_norms_do_not_decay():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    decayed, plain = make_optimizer(Recipe(), net).param_groups
    assert [p.ndim for p in decayed["params"]] == [4]
    assert {p.ndim for p in plain["params"]} == {1}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (5e-4, 0.0)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "timm/adamw"])
def test_positions_and_tokens_do_not_decay(optimizer):
    """timm's models name parameters that must not decay, whichever optimiser trains them."""
    model = TimmModel(variant="vit_tiny_patch16_224").build(10, 3)
    plain = {
        id(p)
        for group in make_optimizer(Recipe(optimizer=optimizer), model).param_groups
        if group["weight_decay"] == 0.0
        for p in group["params"]
    }
    spared = {name for name, p in model.net.named_parameters() if id(p) in plain}
    assert {"pos_embed", "cls_token"} <= spared
    assert not {name for name in spared if name.endswith("qkv.weight")}


@pytest.mark.parametrize(("name", "has_it"), [("timm/sgd", True), ("timm/momentum", False)])
def test_nesterov_of_timms_is_in_the_name(name, has_it):
    optimizer = make_optimizer(Recipe(optimizer=name), torch.nn.Linear(2, 2))
    assert optimizer.defaults["nesterov"] is has_it
    with pytest.raises(SpecError, match="timm/sgd has it, timm/momentum not"):
        Recipe(optimizer=name, nesterov=True)


@pytest.mark.parametrize("options", [{}, {"warmup_lr": 0.001, "min_lr": 0.01}])
def test_warm_up_takes_the_place_of_timms_schedule(options):
    """Warm-up is not put before it: timm's cosine falls meanwhile as if there were none."""
    recipe = Recipe(
        epochs=4,
        lr=0.2,
        schedule="timm/cosine",
        warmup_epochs=1.5,
        schedule_options=options,
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    theirs, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=4, warmup_epochs=1.5, step_on_epochs=False,
        updates_per_epoch=10, **options,
    )  # fmt: skip
    for step in range(40):
        theirs.step_update(step)
        expected = optimizer.param_groups[0]["lr"]
        assert lr_at(recipe, step / 10, 10) == pytest.approx(expected, rel=1e-9)
    begin = options.get("warmup_lr", 1e-5)
    halfway = begin + (0.2 - begin) / 2
    assert lr_at(recipe, 0.75, 20) == pytest.approx(halfway)


@pytest.mark.parametrize("name", ["cosine", "tanh", "poly", "step"])
def test_a_schedule_of_timms_is_timms_in_any_order(name):
    """A resume asks for a step in the middle first."""
    options = {"decay_epochs": 2} if name == "step" else {"min_lr": 0.01}
    recipe = Recipe(epochs=4, lr=0.2, schedule=f"timm/{name}", schedule_options=options)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
    theirs, _ = create_scheduler_v2(
        optimizer, name, num_epochs=4, step_on_epochs=False, updates_per_epoch=10, **options
    )
    expected = []
    for step in range(40):
        theirs.step_update(step)
        expected.append(optimizer.param_groups[0]["lr"])
    assert len(set(expected)) > 1
    for step in (17, 0, 39, 3, *range(40)):
        assert lr_at(recipe, step / 10, 10) == pytest.approx(expected[step], rel=1e-9)


def test_restarts_come_within_the_training():
    options = {"cycle_limit": 4, "cycle_decay": 0.5}
    recipe = Recipe(epochs=8, lr=1.0, schedule="timm/cosine", schedule_options=options)
    rates = [lr_at(recipe, epoch, 10) for epoch in range(8)]
    assert rates == pytest.approx([1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625])
    longer = Recipe(
        epochs=7, lr=1.0, schedule="timm/cosine",
        schedule_options={"cycle_limit": 3, "cycle_mul": 2.0, "cycle_decay": 1.0},
    )  # fmt: skip
    starts = [epoch for epoch in range(7) if lr_at(longer, epoch, 10) > 0.99]
    assert starts == [0, 1, 3]


def test_the_rest_of_an_epoch_does_not_belong_to_the_next():
    """22 steps of 64 samples and one of 29: the last step began a cycle anew."""
    options = {"cycle_limit": 2}
    recipe = Recipe(epochs=4, lr=1.0, schedule="timm/cosine", schedule_options=options)
    done = [64 * k / 1437 for k in range(23)]
    rates = [lr_at(recipe, epoch + part, 23) for epoch in range(4) for part in done]
    assert all(a >= b for a, b in itertools.pairwise(rates[:46]))
    assert all(a >= b for a, b in itertools.pairwise(rates[46:]))


def test_a_plateau_drops_after_so_many_looks_without_a_best():
    recipe = Recipe(epochs=9, lr=1.0, schedule="plateau", patience=1, drop_lr_factor=0.5)
    looks = [50, 60, 60, 59, 61, 61, 61, 61, 61]
    drops = [plateau_drops(looks[:n], 1) for n in range(len(looks) + 1)]
    assert drops == [0, 0, 0, 0, 1, 1, 1, 2, 2, 3]
    assert lr_at(recipe, 3.0, 10, 2) == 0.25
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max", factor=0.5, patience=1, threshold=0.0
    )
    for count, look in enumerate(looks, start=1):
        theirs.step(look)
        assert optimizer.param_groups[0]["lr"] == 0.5 ** drops[count]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"optimizer": "timm/lambb"}, "timm/lamb"),
        ({"optimizer": "lamb"}, "timm/NAME"),
        ({"optimizer": "timm/adahessian"}, "optimizer"),
        (
            {"optimizer": "timm/lamb", "optimizer_options": {"bettas": 1}},
            "does not take them",
        ),
        ({"optimizer_options": {"betas": [0.9, 0.9]}}, "no effect with optimizer: sgd"),
        ({"layer_decay": 0.7}, "no effect with optimizer: sgd"),
        ({"schedule": "cosin"}, "must be one of"),
        ({"schedule": "timm/cosine", "schedule_options": {"cycles": 1}}, "does not take"),
        (
            {"schedule": "timm/cosine", "schedule_options": {"warmup_epochs": 1}},
            "set by kdlab",
        ),
        ({"schedule_options": {"min_lr": 0.1}}, "no effect"),
        ({"schedule": "timm/step"}, "lacks decay_epochs"),
        (
            {"schedule": "timm/step", "schedule_options": {"decay_epochs": 0}},
            "does not take them",
        ),
        ({"accumulate": 65}, "more than batch"),
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
