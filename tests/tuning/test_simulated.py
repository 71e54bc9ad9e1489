"""A simulation as a trial: figures over all of its cases."""

import pytest

from kdlab.config.check import construct
from kdlab.config.load import compose_card
from kdlab.errors import BadInput
from kdlab.simulate.kind import SimulationSpec
from kdlab.tuning.simulated import check, simulated

CARD = "simulations/edl_dist/laptop"


def spec(*cases):
    """The simulation of the card, with one case for each number of teachers."""
    (case,) = compose_card(CARD).data["cases"]
    several = [case | {"name": f"{count}", "teachers": count} for count in cases]
    return construct(SimulationSpec, compose_card(CARD, [{"cases": several, "steps": 40}]))


def test_the_worst_case_counts_for_speed_and_memory_and_all_for_costs():
    slow, quick = simulated(spec(1)), simulated(spec(8))
    both = simulated(spec(1, 8))
    assert slow["of_n_training"] < 0.3 < quick["of_n_training"] <= 1  # one teacher of five
    assert both["of_n_training"] == slow["of_n_training"]
    assert both["teachers"] == 9
    assert both["volume_max"] == max(slow["volume_max"], quick["volume_max"])
    rates = slow["samples_per_second"] + quick["samples_per_second"]
    assert both["samples_per_second"] == pytest.approx(rates)
    assert both["samples_lost"] == 0


def test_what_has_no_thresholds_cannot_be_swept():
    shapes = construct(SimulationSpec, compose_card("simulations/pipe_bd/shapes"))
    with pytest.raises(BadInput, match=r"simulate/pipe_bd.* has nothing to tune"):
        check(shapes)
    assert check(spec(1)) == spec(1)
