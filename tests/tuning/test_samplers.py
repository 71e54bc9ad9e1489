"""Samplers and pruners by short names: options are checked, and reach Optuna."""

import functools

import optuna
import pytest
from small_sweeps import SIMULATED, TRAINED, searched

from kdlab.errors import SpecError
from kdlab.tuning import samplers

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def spec(tree=TRAINED, **changes):
    return searched(tree, **changes).spec


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tpe", optuna.samplers.TPESampler),
        ("random", optuna.samplers.RandomSampler),
        ("qmc", optuna.samplers.QMCSampler),
        ("nsga2", optuna.samplers.NSGAIISampler),
        ("nsga3", optuna.samplers.NSGAIIISampler),
    ],
)
def test_a_sampler_is_optunas_of_that_name(name, kind):
    assert type(samplers.sampler(spec(sampler={"name": name, "seed": 4}))) is kind


def test_a_study_with_trials_does_not_draw_the_same_again():
    """A sampler's seed is the sweep's plus the number of trials that are there already."""
    random = spec(sampler={"name": "random", "seed": 4})

    def drawn(before):
        study = optuna.create_study(sampler=samplers.sampler(random, before))
        return study.ask().suggest_float("x", 0, 1)

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(7)
    shifted = spec(sampler={"name": "random", "seed": 11})
    assert drawn(7) == optuna.create_study(sampler=samplers.sampler(shifted)).ask(
    ).suggest_float("x", 0, 1)  # fmt: skip
    samplers.sampler(spec(sampler={"name": "random"}), 7)  # no seed: nothing to count from


def test_options_of_a_pruner_reach_it_and_one_may_wrap_another():
    inner = {"name": "median", "n_startup_trials": 3}
    wrapped = {"name": "patient", "wrapped_pruner": inner, "patience": 2}
    pruner = samplers.pruner(spec(pruner=wrapped))
    assert type(pruner) is optuna.pruners.PatientPruner
    assert type(pruner._wrapped_pruner) is optuna.pruners.MedianPruner
    assert pruner._wrapped_pruner._n_startup_trials == 3
    assert pruner._patience == 2
    assert type(samplers.pruner(spec())) is optuna.pruners.NopPruner


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": {"name": "cmaess"}}, r"sampler.name.*Nearest: cmaes\..*All: tpe, "),
        ({"pruner": {"name": "patient", "patience": 1, "wrapped_pruner": {"name": "medium"}}},
         r"pruner.wrapped_pruner.name: is 'medium'.*Nearest: median"),
        ({"pruner": {"name": "patient", "wrapped_pruner": {"name": "median"}}}, r"patience"),
        ({"pruner": {"name": "percentile", "percentile": 300}}, r"pruner: .*percentile"),
        ({"sampler": {"name": ["tpe"]}}, r"sampler.name: is \['tpe'\]"),
        ({"pruner": {"name": {}}}, r"pruner.name: is {}"),
        ({"sampler": {"name": "tpe", "n_ei_candidates": 0}}, r"is 0, must be above 0"),
        ({"sampler": {"name": "tpe", "n_startup_trials": [1]}}, r"is \[1\], must be int"),
        ({"sampler": {"name": "tpe", "seed": True}}, r"is True, must be int"),
        ({"pruner": {"name": "patient", "patience": 1, "wrapped_pruner": [1]}},
         r"wrapped_pruner: is \[1\], must be BasePruner"),
        ({"sampler": {"name": "tpe", "gamma": 3}}, r"tpe has no such option"),
    ],
)  # fmt: skip
def test_what_optuna_would_refuse_is_a_fault_of_the_sweep(changes, message):
    with pytest.raises(SpecError, match=f"(?s){message}"):
        searched(TRAINED, **changes)


def test_a_sampler_of_one_objective_is_refused_for_two():
    with pytest.raises(SpecError, match="cmaes, which takes one objective only"):
        searched(SIMULATED, sampler={"name": "cmaes"})


def test_a_package_that_is_missing_is_named(monkeypatch):
    known = spec()

    @functools.wraps(optuna.samplers.TPESampler)  # with its options
    def missing(**options):
        raise ImportError("no module", name="cmaes")

    monkeypatch.setitem(samplers._SAMPLERS, "tpe", missing)
    with pytest.raises(SpecError, match="needs a package: pip install cmaes"):
        samplers.check(known)
