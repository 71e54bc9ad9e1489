"""The space is checked against the specs its keys belong to, and gives values for them."""

import optuna
import pytest
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.errors import SpecError
from kdlab.tuning.space import number, parameter
from kdlab.tuning.spec import Dimension, SweepSpec
from kdlab.tuning.spec_field import field_at


def faults(tree, **changes):
    with pytest.raises(SpecError) as error:
        searched(tree, **changes)
    return str(error.value)


def space(**dimensions):
    return {key.replace("__", "."): value for key, value in dimensions.items()}


def asked(search, number=1, **fixed):
    study = optuna.create_study(
        directions=search.spec.directions(), sampler=optuna.samplers.RandomSampler(seed=3)
    )
    if fixed:
        study.enqueue_trial(fixed)
    return [search.space.suggest(study.ask()) for _ in range(number)]


def test_values_fit_the_specs_they_are_for():
    search = searched(SIMULATED)
    for values in asked(search, 50):
        assert isinstance(values["cases.0.teachers"], int)
        assert 2 <= values["lt"] <= 8
        assert 1.5 <= values["ut"] / values["lt"] <= 8
        assert search.space.composed(values).data["ut"] == values["ut"]


def test_a_key_exists_only_where_its_condition_holds():
    loss = {"choices": ["losses/hinton", "losses/dkd"]}
    temperature = {"low": 1, "high": 8, "when": {"loss": "losses/hinton"}}
    search = searched(TRAINED, space=space(loss=loss, loss__temperature=temperature))
    seen = asked(search, 30)
    assert {v["loss"] for v in seen} == set(loss["choices"])
    for values in seen:
        assert ("loss.temperature" in values) == (values["loss"] == "losses/hinton")
        data = search.space.composed(values).data
        assert data["loss"]["type"] == values["loss"]


def test_the_grid_has_every_combination_once():
    loss = {"choices": ["losses/hinton", "losses/dkd"]}
    epochs = {"low": 2, "high": 6, "step": 2}
    temperature = {"choices": [1, 4], "when": {"loss": "losses/hinton"}}
    search = searched(
        TRAINED,
        sampler={"name": "grid"},
        space=space(loss=loss, train__epochs=epochs, loss__temperature=temperature),
    )
    points = search.space.grid()
    assert len(points) == 3 * 2 + 3  # without a temperature once for each number of epochs
    assert {p["train.epochs"] for p in points} == {2, 4, 6}


def test_the_experiment_as_it_is_is_tried_where_the_space_holds_it():
    assert searched(TRAINED).space.as_it_is() == {"train.lr": 0.05, "train.momentum": 0.9}
    narrow = space(train__lr={"low": 0.2, "high": 0.5})
    assert searched(TRAINED, space=narrow).space.as_it_is() is None


def test_what_is_enqueued_is_named_as_optuna_names_it():
    search = searched(SIMULATED)
    parameters = search.space.parameters({"cases.0.teachers": 2, "lt": 4, "ut": 8})
    assert parameters == {"cases.0.teachers": 2, "lt": 4, "ut / lt": 2}


@pytest.mark.parametrize(
    ("key", "dimension", "message"),
    [
        ("train.momentun", {"low": 0, "high": 1}, r"Nearest: train.momentum"),
        ("train.lr", {"low": -1, "high": 1}, r"low is -1, must be > 0"),
        ("train.epochs", {"low": 1.5, "high": 3}, r"whole numbers"),
        ("train.optimizer", {"low": 1, "high": 3}, r"set choices"),
        ("train.optimizer", {"choices": ["sgd", "sgdd"]}, r"'sgdd'; there is sgd"),
        ("train.precision", {"choices": ["fp32", "fp33"]}, r"'fp33' is none of"),
        ("train.batch", {"choices": [16, 0]}, r"must be >"),
        ("train.batch", {"choices": ["many"]}, r"'many' is not a whole number"),
        ("loss", {"choices": ["losses/hinton", "losses/hintom"]}, r"losses/hintom"),
        ("train.lr", {"low": 0.5, "high": 0.1}, r"low: is 0.5 and high is 0.1"),
        ("train.lr", {"low": 0, "high": 1, "log": True}, r"log scale begins above 0"),
        ("train.lr", {"low": 0.1, "high": 1, "times": "train.momentum"}, r"come before"),
        ("train.lr", {}, r"is missing; or set choices"),
        ("train.lr", {"low": 0, "high": 1, "step": 1e-310}, r"more than 1e\+15 fit"),
        (
            "train.lr",
            {"low": 0, "high": 1, "when": {"loss": []}},
            r"when.loss: is an empty",
        ),
        ("train.batch", {"low": 8, "high": 1e30}, r"high is 1e\+30.*64 bits"),
        ("train.batch", {"choices": [8, 1e30]}, r"1e\+30 is not a whole number .*64 bits"),
        (5, {"low": 0, "high": 1}, r"the key 5, which is no text"),
        ("train.epochs", {"low": 1, "high": 4, "step": 0.5}, r"step is 0.5.*whole numbers"),
    ],
)
def test_faults_of_a_key(key, dimension, message):
    with pytest.raises(SpecError, match=message):
        searched(TRAINED, space={key: dimension})


def test_all_faults_come_at_once():
    text = faults(
        TRAINED,
        space=space(train__lr={"low": -1, "high": 1}, train__x={"low": 1, "high": 2}),
    )
    assert "low is -1" in text
    assert "train.x" in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train.lr": 0.1}, r"train.momentum is missing"),
        ({"train.lr": 7, "train.momentum": 0.5}, r"train.lr is 7, must be 0.001 to 0.5"),
        ({"train.lr": 0.1, "train.momentum": 0.5, "x": 1}, r"x is not in the space"),
    ],
)
def test_what_is_enqueued_must_lie_in_the_space(values, message):
    with pytest.raises(SpecError, match=message):
        searched(TRAINED, enqueue=[values])


def test_a_factor_of_what_may_not_be_there():
    loss = {"choices": ["losses/hinton", "losses/dkd"]}
    temperature = {"low": 1, "high": 8, "when": {"loss": "losses/hinton"}}
    rate = {"low": 0.1, "high": 1, "times": "loss.temperature"}
    text = faults(
        TRAINED, space=space(loss=loss, loss__temperature=temperature, train__lr=rate)
    )
    assert "exists only when {'loss': 'losses/hinton'}" in text
    message = faults(SIMULATED, enqueue=[{"cases.0.teachers": 2, "ut": 8}])
    assert "lt is missing" in message


def test_naming_a_part_that_is_there_keeps_its_other_keys():
    keys = {"loss.hard_weight": 0.25}
    loss = {"choices": ["losses/hinton", "losses/dkd"]}
    search = searched(TRAINED, overrides=keys, space=space(loss=loss))
    same = search.space.composed({"loss": "losses/hinton"}).data["loss"]
    replaced = search.space.composed({"loss": "losses/dkd"}).data["loss"]
    assert same["hard_weight"] == 0.25
    assert replaced == {"type": "losses/dkd"}


def test_a_grid_needs_steps():
    assert "needs step, or choices" in faults(TRAINED, sampler={"name": "grid"})


@pytest.mark.parametrize(
    ("key", "dimension", "message"),
    [
        (
            "train.batch",
            {"low": 8, "high": 1e12},
            r"has 1e\+12 steps.* at most 10000 points",
        ),
        ("train.lr", {"low": 0.1, "high": 1, "step": 1e-12}, r"has 9e\+11 steps"),
        ("train.lr", {"low": 0.1, "high": 1, "step": 1e-310}, r"more than 1e\+15 fit"),
    ],
)
def test_a_grid_of_too_many_points_is_refused_before_it_is_built(key, dimension, message):
    with pytest.raises(SpecError, match=message):
        searched(TRAINED, sampler={"name": "grid"}, space={key: dimension})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"objectives": [{"metric": "validation_top"}]},
            r"Nearest: validation_top1.*All: ",
        ),
        ({"constraints": [{"metric": "speed", "at_least": 1}]}, r"All: validation_top1"),
        ({"constraints": [{"metric": "resends"}]}, r"give one of them"),
        ({"sampler": {"name": "tpee"}}, r"Nearest: tpe"),
        ({"sampler": {"name": "tpe", "n_startup": 3}}, r"Nearest: n_startup_trials"),
        ({"sampler": {"name": "tpe", "n_startup_trials": "a"}}, r"is 'a', must be int"),
        ({"pruner": {"name": "median", "warm": 3}}, r"median has no such option"),
        (
            {
                "objectives": [{"metric": "validation_top1"}, {"metric": "wall_seconds"}],
                "pruner": {"name": "median"},
            },
            r"Optuna prunes by one only",
        ),
        (
            {"objectives": [{"metric": "wall_seconds"}], "pruner": {"name": "median"}},
            r"known only when a trial has ended",
        ),
        ({"trials": 1e30}, r"trials: .*64 bits do not hold"),
        ({"seeds": [1e30]}, r"seeds.0: .*64 bits do not hold"),
        ({"simulation": "edl_dist/laptop"}, r"give one of them"),
        ({"experiment": None}, r"give one of them"),
    ],
)
def test_faults_of_a_sweep(changes, message):
    text = faults(TRAINED, **changes)
    import re

    assert re.search(message, text, re.DOTALL), text


def test_a_leaf_says_what_it_takes():
    base = searched(TRAINED).space.base
    assert field_at(base, "train.epochs").kinds == (int,)
    assert field_at(base, "train.lr").limit.gt == 0
    assert "bf16" in field_at(base, "train.precision").choices
    assert field_at(base, "loss").kinds == ()


def test_a_simulation_without_thresholds_is_refused():
    from kdlab.errors import BadInput

    with pytest.raises(BadInput, match=r"has nothing to tune"):
        searched(SIMULATED, simulation="pipe_bd/shapes", overrides={}, constraints=[], space={
            "cases.0.batch": {"low": 8, "high": 64}})  # fmt: skip


def test_the_spec_comes_back_from_its_yaml():
    from kdlab.config.check import construct
    from kdlab.config.load import from_dict

    spec = searched(SIMULATED).spec
    assert construct(SweepSpec, from_dict(spec.to_dict(), "again")) == spec


def test_what_a_trial_of_an_earlier_sweep_lacked_is_as_it_is():
    domain = searched(TRAINED).space
    assert domain.completed({"train.lr": 0.2, "loss.temperature": 3}) == {
        "train.lr": 0.2,
        "train.momentum": 0.9,
    }


def test_a_part_that_is_there_already_is_no_change():
    loss = {"choices": ["losses/hinton", "losses/dkd"]}
    domain = searched(TRAINED, space=space(loss=loss)).space
    assert domain.changed({"loss": "losses/hinton"}) == {}
    assert domain.changed({"loss": "losses/dkd"}) == {"loss": "losses/dkd"}
    assert domain.changed({"train.lr": 0.05}) == {"train.lr": 0.05}  # always, for numbers


def test_the_part_of_a_card_is_the_choice_that_makes_the_same():
    """An experiment that spells out what a card holds is tried as it is by that card."""
    students = {"choices": ["students/digits_tiny", "students/digits_small"]}
    domain = searched(TRAINED, space=space(student=students)).space
    assert domain.as_it_is() == {"student": "students/digits_tiny"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cases.0.teachers": "two", "lt": 4, "ut": 8}, "must be a number"),
        (
            {"cases.0.teachers": 2, "lt": 4, "ut": 400},
            "ut is 100 times lt, must be 1.5 to 8",
        ),
        ({"cases.0.teachers": 2, "lt": 0, "ut": 8}, "factor of lt, which must be set"),
    ],
)
def test_why_values_do_not_lie_in_the_space(values, message):
    reasons = list(searched(SIMULATED).space.faults_of(values))
    assert any(message in fault for fault in reasons), reasons


def test_what_optuna_calls_a_factor():
    assert parameter("ut", Dimension(low=1, high=2, times="lt")) == "ut / lt"
    assert parameter("lt", Dimension(low=1, high=2)) == "lt"
    with pytest.raises(AssertionError):
        number("3")


def test_the_grid_of_a_range_ends_with_its_end_and_is_not_endless():
    lr = {"low": 0.1, "high": 0.3, "step": 0.1}
    search = searched(TRAINED, sampler={"name": "grid"}, space=space(train__lr=lr))
    assert [p["train.lr"] for p in search.space.grid()] == pytest.approx([0.1, 0.2, 0.3])
    many = {key: {"low": 2, "high": 301} for key in ("train.epochs", "train.batch")}
    with pytest.raises(SpecError, match="90000"):
        searched(TRAINED, sampler={"name": "grid"}, space=many)
