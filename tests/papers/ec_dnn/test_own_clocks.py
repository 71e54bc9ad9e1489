"""Workers without common rounds, lost at any moment: each does all, one at a time exchanges."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.ec_dnn.own_clocks import OwnClocks
from kdlab.papers.ec_dnn.round_schedule import RoundSchedule
from kdlab.papers.ec_dnn.rounds import Combine, Communicated, Finish, Restart, Train


def machine(workers, rounds):
    table = RoundSchedule(iterations=10 * rounds, tau=10, averages=True)
    return OwnClocks([0] * workers, table.rounds)


def test_nobody_waits_for_the_slowest():
    clocks = machine(2, 3)
    (slow,) = clocks.on_ready(0)
    instructions = list(clocks.on_ready(1))
    for number in range(3):
        (train,) = instructions
        assert (type(train), train.worker, train.round.number) == (Train, 1, number)
        (exchange,) = clocks.on_done(1)
        assert exchange == Combine(1, train.round if number else slow.round, (1,))
        instructions = list(clocks.on_done(1))
    assert instructions == []  # it has done all, while the other is in its first round
    assert clocks.clocks == [0, 3]
    for number in range(3):
        list(clocks.on_done(0))
        instructions = list(clocks.on_done(0))
        assert instructions[0] == Communicated(number, (0, 1))
    assert instructions[1:] == [Finish((0, 1))]


def test_who_is_lost_at_the_centre_frees_it_and_queues_again():
    clocks = machine(3, 1)
    for worker in range(3):
        list(clocks.on_ready(worker))
    assert [i.worker for i in clocks.on_done(0)] == [0]
    assert list(clocks.on_done(1)) == []
    restart, exchange = clocks.on_lost(0)
    assert (restart, exchange.worker) == (Restart(0), 1)
    assert list(clocks.on_done(2)) == []
    assert list(clocks.on_ready(0)) == []  # behind worker 2
    assert [i.worker for i in clocks.on_done(1)] == [2]
    assert [i.worker for i in clocks.on_done(2)] == [0]
    assert list(clocks.on_done(0)) == [Communicated(0, (0, 1, 2)), Finish((0, 1, 2))]


@settings(max_examples=examples(300))
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_whoever_is_lost_each_trains_and_exchanges_every_round_once(data, workers, number):
    """Any order of arrivals, at most a dozen losses, and a resume at any moment."""
    clocks = machine(workers, number)
    doing = dict.fromkeys(range(workers), "starting")
    trained, exchanged = list[tuple[int, int]](), list[tuple[int, int]]()
    at = dict.fromkeys(range(workers), 0)
    communicated, finished, last = list[int](), list[tuple[int, ...]](), None
    losses = data.draw(st.integers(0, 12))

    def execute(instructions):
        for i in instructions:
            match i:
                case Train(worker, round_, latest):
                    assert (doing[worker], latest) == ("waiting", (worker,))
                    doing[worker], at[worker] = "training", round_.number
                case Combine(worker, round_, models):
                    assert (doing[worker], models) == ("waiting", (worker,))
                    assert "exchanging" not in doing.values()
                    doing[worker], at[worker] = "exchanging", round_.number
                case Restart(worker):
                    doing[worker] = "starting"
                case Communicated(round_, models):
                    assert models == tuple(range(workers))
                    assert {(k, round_) for k in models} <= set(exchanged)
                    communicated.append(round_)
                case Finish(models):
                    finished.append(models)

    while not finished:
        able = sorted(k for k, what in doing.items() if what != "waiting")
        assert able, "nobody can do anything, and it has not ended"
        if data.draw(st.integers(0, 15)) == 15:
            clocks = OwnClocks(list(clocks.clocks), clocks.rounds, set(clocks.trained))
            doing = dict.fromkeys(range(workers), "starting")
            continue
        worker = data.draw(st.sampled_from(able))
        if losses and doing[worker] != "starting" and data.draw(st.booleans()):
            losses -= 1
            doing[worker] = "waiting"
            execute(clocks.on_lost(worker))
            continue
        was, doing[worker] = doing[worker], "waiting"
        if was == "starting":
            execute(clocks.on_ready(worker))
            continue
        (trained if was == "training" else exchanged).append((worker, at[worker]))
        last = worker
        execute(clocks.on_done(worker))
    everything = [(k, r) for k in range(workers) for r in range(number)]
    assert sorted(trained) == sorted(exchanged) == everything
    assert communicated == list(range(number))
    assert finished[0][0] == last  # with the last centre
    assert sorted(finished[0]) == list(range(workers))
