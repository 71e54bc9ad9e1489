"""Times of EC-DNN (Section 4.3) on a simulated clock, against the same by arithmetic."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.errors import BadInput
from kdlab.papers.ec_dnn.parallel import Network
from kdlab.run.simulations import simulate
from kdlab.simulate.ec_dnn import EnsembleCase, crossover_gbit, simulate_case

EC = EnsembleCase(name="ec", method="ec", tau=100, iterations=1000, diversity=False)
MA = EnsembleCase(name="ma", method="ma", tau=10, iterations=1000)


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(1, 300), st.floats(0.01, 100))
def test_an_average_takes_its_steps_and_its_rounds(workers, tau, gbit):
    case = replace(MA, workers=workers, tau=tau, gbit_per_s=gbit)
    network = Network(bytes_per_s=gbit * 1.25e8)
    rounds = -(-1000 // tau)
    each = network.communication_s("model_average", workers, 4_000_000)
    assert simulate_case(case).overall_s == pytest.approx(1000 * 0.05 + rounds * each)


def test_a_compression_pays_for_what_it_relabels():
    outcome = simulate_case(EC)
    assert outcome.rounds == 10
    assert outcome.parts["train"] == pytest.approx(50)
    assert outcome.parts["compress"] == pytest.approx(5)
    assert outcome.parts["relabel"] == pytest.approx(100 * 4 * 0.015)
    assert outcome.overall_s == pytest.approx(
        sum(outcome.parts.values()) + outcome.communication_s
    )
    diverse = simulate_case(replace(EC, diversity=True))
    extra = 900 * 4 * 0.015  # none in the first round
    assert diverse.parts["relabel"] == pytest.approx(outcome.parts["relabel"] + extra)


def test_all_wait_for_the_slowest():
    slow = replace(EC, speeds=(1.0, 1.0, 1.0, 0.5))
    assert simulate_case(slow).overall_s > 1.9 * simulate_case(EC).overall_s
    plain = EnsembleCase(name="e", method="e", iterations=1000, speeds=(1.0, 1.0, 1.0, 0.5))
    assert simulate_case(plain).overall_s == pytest.approx(100)


def test_where_the_link_decides():
    crossing = crossover_gbit(EC, MA)
    assert crossing is not None
    for factor, ec_wins in ((0.5, True), (2.0, False)):
        a, b = (simulate_case(replace(c, gbit_per_s=factor * crossing)) for c in (EC, MA))
        assert (a.overall_s < b.overall_s) is ec_wins
    assert crossover_gbit(EC, replace(EC, p_fraction=0.2)) is None


@pytest.mark.parametrize("name", ["ec_dnn/crossover", "ec_dnn/imagenet"])
@pytest.mark.long
def test_cards(name):
    report, table = simulate(name)
    figures = {f["name"]: f["value"] for f in report["figures"]}
    assert any(key.startswith("crossover_gbit/") for key in figures)
    assert "Calibration: " in table


def test_no_case_is_a_fault():
    with pytest.raises(BadInput, match="cases: is empty; give at least one"):
        simulate("ec_dnn/crossover", ["cases=[]"])
