"""Students of a wanted cost, however noisy the machine is."""

import pytest

from benchmarks import overhead, students
from benchmarks.students import depth_for
from kdlab.data.digits import Digits
from kdlab.data.samples import planned
from kdlab.models.cifar_resnet import CifarResNet
from kdlab.train.recipe import Recipe


@pytest.mark.parametrize(("step_ms", "depth"), [(0.5, 1), (5.0, 10), (80.0, 160)])
def test_a_step_takes_as_long_as_it_should(step_ms, depth):
    assert depth_for(step_ms, lambda layers: 0.5 * layers) == depth


def test_a_disturbed_probe_never_makes_thousands_of_layers():
    """Defect D9: where more layers seemed faster, a student had tens of thousands of them."""
    noise = iter([4.9, 1.0, 1.5, 3.0, 6.0, 9.0])
    assert depth_for(5.0, lambda layers: next(noise)) == 9
    assert depth_for(5.0, lambda layers: 1.0) == students._MAX_LAYERS


def test_the_bare_loop_learns_at_the_rates_of_its_recipe(monkeypatch):
    """Defect D5: steps were counted as epochs, and the rate was 0 from step 4 on."""
    rates = []

    def seen(recipe, epoch, steps_per_epoch):
        rates.append(overhead_rate(recipe, epoch, steps_per_epoch))
        return rates[-1]

    overhead_rate = overhead.lr_at
    monkeypatch.setattr(overhead, "lr_at", seen)
    digits = Digits(size=8, train_samples=160, test_samples=32)
    samples = planned(digits.load(), digits.to_dict(), batch=32, seed=0, epochs=4)
    recipe = Recipe(epochs=4, batch=32, threads=1, evaluate_every=4, device="cpu")
    spec = CifarResNet(depth=8, width=(4, 4, 4, 4))
    assert min(overhead._rates(recipe, spec, samples)) > 0
    assert len(rates) >= 4 * samples.plan.batches > 8
    assert min(rates) > 0


@pytest.mark.nightly
def test_what_kdlab_costs_is_measured_of_commands_too():
    values = {f["name"]: f["value"] for f in overhead.measure(repeats=1)["figures"]}
    asked = {f"cpu_s/{name}" for name in (*overhead._SMALL, *overhead._ORDERS)}
    assert {"n_training_over_bare_loop", "import_s", *asked} <= set(values)
    assert all(value > 0 for value in values.values())
