"""Students of a wanted cost, however noisy the machine is."""

import pytest

from kdlab.bench import overhead, students
from kdlab.bench.students import depth_for


@pytest.mark.parametrize(("step_ms", "depth"), [(0.5, 1), (5.0, 10), (80.0, 160)])
def test_a_step_takes_as_long_as_it_should(step_ms, depth):
    assert depth_for(step_ms, lambda layers: 0.5 * layers) == depth


def test_a_disturbed_probe_never_makes_thousands_of_layers():
    """The defect D9: where more layers seemed quicker, tens of thousands were taken."""
    noise = iter([4.9, 1.0, 1.5, 3.0, 6.0, 9.0])
    assert depth_for(5.0, lambda layers: next(noise)) == 9
    assert depth_for(5.0, lambda layers: 1.0) == students._MAX_LAYERS


def test_the_bare_loop_learns_at_the_rates_of_its_recipe(monkeypatch):
    """The defect D5: steps were taken for epochs, and the rate was 0 from step 4 on."""
    rates = []

    def seen(recipe, epoch, steps_per_epoch):
        rates.append(overhead_rate(recipe, epoch, steps_per_epoch))
        return rates[-1]

    overhead_rate = overhead.lr_at
    monkeypatch.setattr(overhead, "lr_at", seen)
    monkeypatch.setattr(overhead, "_import_seconds", lambda: 0.0)
    overhead.measure(repeats=1)
    assert len(rates) > 8
    assert min(rates) > 0
