"""Algorithm 1 as a machine, with workers that are lost at any moment."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.papers.ec_dnn.rounds import (
    Combine,
    Communicated,
    Finish,
    Restart,
    Rounds,
    Train,
)


def machine(workers=3, rounds=3, **rest):
    table = RoundSchedule(iterations=10 * rounds, tau=10, compresses=True, **rest)
    return Rounds(workers, table.rounds)


def all_ready(rounds):
    return [i for k in range(rounds.workers) for i in rounds.on_ready(k)]


def test_a_whole_training():
    rounds = machine()
    instructions = all_ready(rounds)
    assert [type(i) for i in instructions] == [Train] * 3
    for number in range(3):
        assert [i.round.number for i in instructions] == [number] * 3
        assert all(i.latest == ((0, 1, 2) if number else ()) for i in instructions)
        assert list(rounds.on_done(0)) == []
        assert list(rounds.on_done(2)) == []
        instructions = list(rounds.on_done(1))
        assert instructions[0] == Communicated(number, (0, 1, 2))
        if number == 2:
            assert instructions[1:] == [Finish((0, 1, 2))]
            return
        assert [type(i) for i in instructions[1:]] == [Combine] * 3
        instructions = [i for k in range(3) for i in rounds.on_done(k)]


def test_the_last_may_be_compressed_too():
    rounds = machine(workers=1, rounds=1, compress_last=True)
    all_ready(rounds)
    instructions = list(rounds.on_done(0))
    assert [type(i) for i in instructions] == [Communicated, Combine]
    assert list(rounds.on_done(0)) == [Finish((0,))]


def test_the_average_is_over_those_that_arrived_and_the_lost_one_comes_back():
    rounds = machine()
    all_ready(rounds)
    list(rounds.on_done(0))
    list(rounds.on_done(1))
    instructions = list(rounds.on_lost(2))
    assert instructions[:2] == [Restart(2), Communicated(0, (0, 1))]
    assert [i.worker for i in instructions[2:]] == [0, 1]
    assert list(rounds.on_ready(2)) == []  # it waits for the next round
    list(rounds.on_done(0))
    latest = [(i.worker, i.latest) for i in rounds.on_done(1)]
    assert latest == [(0, (0, 1)), (1, (0, 1)), (2, (0, 1))]


def test_a_model_that_was_published_counts_though_its_maker_is_gone():
    rounds = machine(workers=2)
    all_ready(rounds)
    list(rounds.on_done(1))
    assert list(rounds.on_lost(1)) == [Restart(1)]
    instructions = list(rounds.on_done(0))
    assert instructions[0] == Communicated(0, (0, 1))
    assert [i.worker for i in instructions[1:]] == [0]


def test_lost_while_combining():
    rounds = machine(workers=2)
    all_ready(rounds)
    list(rounds.on_done(0))
    list(rounds.on_done(1))
    list(rounds.on_done(0))
    instructions = list(rounds.on_lost(1))
    assert instructions[0] == Restart(1)
    assert [(i.worker, i.latest) for i in instructions[1:]] == [(0, (0,))]
    assert list(rounds.on_done(1)) == []  # last words of a dead one


def test_in_the_last_round_the_others_wait():
    rounds = machine(workers=2, rounds=1)
    all_ready(rounds)
    assert list(rounds.on_lost(0)) == [Restart(0)]
    assert list(rounds.on_done(1)) == []
    assert [i.worker for i in rounds.on_ready(0)] == [0]
    assert list(rounds.on_done(0))[-1] == Finish((0, 1))


def test_when_nobody_is_left_the_round_is_trained_again():
    rounds = machine(workers=2)
    all_ready(rounds)
    assert list(rounds.on_lost(0)) == [Restart(0)]
    assert list(rounds.on_lost(1)) == [Restart(1)]
    assert list(rounds.on_ready(1)) == []
    instructions = list(rounds.on_ready(0))
    assert [(i.worker, i.round.number) for i in instructions] == [(0, 0), (1, 0)]


KINDS = {
    "ec": {"compresses": True},
    "ma": {"averages": True},
    "e": {"tau": None},
}


@settings(max_examples=examples(300))
@given(
    st.data(),
    st.sampled_from(list(KINDS)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_whoever_is_lost_it_ends_and_every_round_communicates_once(
    data, kind, workers, number, waits
):
    """Any order of arrivals and at most a dozen losses."""
    options = {"iterations": 10 * number, "tau": 10, "looks": number} | KINDS[kind]
    rounds = Rounds(workers, RoundSchedule(**options).rounds, waits=waits)
    losses = data.draw(st.integers(0, 12))
    doing: dict[int, str] = dict.fromkeys(range(workers), "starting")
    communicated, finished = list[int](), list[tuple[int, ...]]()

    def execute(instructions):
        for i in instructions:
            match i:
                case Train(worker):
                    assert doing[worker] == "waiting"
                    doing[worker] = "training"
                case Combine(worker, _, models):
                    assert doing[worker] == "waiting"
                    assert models == communicated_models[-1]
                    doing[worker] = "combining"
                case Restart(worker):
                    doing[worker] = "starting"
                case Communicated(round_, models):
                    communicated.append(round_)
                    communicated_models.append(models)
                case Finish(models):
                    finished.append(models)

    communicated_models: list[tuple[int, ...]] = []
    while not finished:
        able = sorted(k for k, what in doing.items() if what != "waiting")
        assert able, "nobody can do anything, and it has not ended"
        worker = data.draw(st.sampled_from(able))
        if losses and doing[worker] != "starting" and data.draw(st.booleans()):
            losses -= 1
            execute(rounds.on_lost(worker))
            continue
        was, doing[worker] = doing[worker], "waiting"
        step = {
            "starting": rounds.on_ready,
            "training": rounds.on_done,
            "combining": rounds.on_done,
        }[was]
        execute(step(worker))
    assert communicated == list(range(number))
    assert finished == [tuple(range(workers))]  # nobody is missing in the end
    if waits:
        assert communicated_models == number * finished
