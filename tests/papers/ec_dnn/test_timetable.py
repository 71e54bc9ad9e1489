from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.ec_dnn.round_schedule import RoundSchedule, StepWeight


def test_o9_the_weight_rises_after_a_fifth_of_the_compressions():
    rising = StepWeight()
    assert [rising.at(c, 10) for c in range(10)] == [0.4] * 2 + [0.6] * 8
    assert [rising.at(c, 4) for c in range(4)] == [0.6] * 4  # floor(0.8) = 0 with 0.4
    assert [StepWeight(1.0, 1.0).at(c, 5) for c in range(5)] == [1.0] * 5


def test_ec_has_p_of_all_and_no_compression_after_the_last_communication():
    table = RoundSchedule(iterations=100, tau=30, compresses=True, diversity_weight=0.6)
    rounds = table.rounds
    assert [r.train_steps for r in rounds] == [30, 30, 30, 10]
    assert [r.compress_steps for r in rounds] == [3, 3, 4, 0]
    assert [r.diversity_weight for r in rounds] == [0, 0.6, 0.6, 0.6]
    assert table.steps == 110


def test_ecd_026_without_tau_there_is_one_communication_at_the_end():
    (only,) = RoundSchedule(iterations=50, tau=None, compresses=True).rounds
    assert (only.train_steps, only.compress_steps, only.combines) == (50, 0, False)


def test_without_communication_there_are_rounds_only_to_look():
    rounds = RoundSchedule(iterations=50, tau=None, looks=4).rounds
    assert [r.train_steps for r in rounds] == [13, 13, 13, 11]
    assert [r.communicates for r in rounds] == [False, False, False, True]
    assert not any(r.combines for r in rounds)


def test_an_average_follows_every_round():
    assert all(
        r.combines for r in RoundSchedule(iterations=50, tau=16, averages=True).rounds
    )


@given(
    st.integers(1, 500),
    st.integers(1, 600) | st.none(),
    st.booleans(),
    st.floats(0, 1),
    st.booleans(),
)
def test_iterations_add_up(iterations, tau, compresses, fraction, last):
    table = RoundSchedule(
        iterations=iterations,
        tau=tau,
        compresses=compresses,
        p_fraction=fraction,
        compress_last=last,
    )
    assert sum(r.train_steps for r in table.rounds) == iterations
    compressing = compresses and (last or len(table.rounds) > 1)
    assert table.compress_steps == (round(fraction * iterations) if compressing else 0)
    counts = [r.compress_steps for r in table.rounds if compresses]
    compressed = counts if last else counts[:-1]
    assert not compressed or max(compressed) - min(compressed) <= 1


def test_p_in_iterations_is_of_each_compression():
    table = RoundSchedule(iterations=40, tau=10, compresses=True, p_iterations=3)
    assert [r.compress_steps for r in table.rounds] == [3, 3, 3, 0]
