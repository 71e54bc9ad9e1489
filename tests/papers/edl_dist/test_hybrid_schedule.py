"""EDL-Dist Algorithm 1: hold above ut, send below lt, one more teacher at zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.edl_dist.hybrid_schedule import (
    BufferState,
    Schedule,
    default_thresholds,
    on_volume,
)

PAPER = Schedule(lt=4, ut=8, policy="paper")
GUARDED = Schedule(lt=4, ut=8)


def level(unused, in_flight=0, **facts):
    return BufferState(unused=unused, in_flight=in_flight, **facts)


def replay(volumes, schedule=PAPER):
    """Replay buffer levels and return the instructions to the reader, in order."""
    instructions = []
    for volume in volumes:
        schedule, now = on_volume(schedule, level(volume))
        instructions += now
    return instructions


def test_lines_4_and_10_as_printed_hold_above_ut_and_send_again_below_lt():
    assert replay([5, 7, 8, 9, 7, 5, 4, 3, 5]) == ["hold_inputs", "send_inputs"]


def test_line_7_asks_for_one_teacher_until_it_joins():
    assert replay([0, 0, 0]) == ["request_teacher"]
    starving, _ = on_volume(PAPER, level(0))
    assert replay([0], starving.may_ask()) == ["request_teacher"]


def test_the_printed_lines_know_nothing_of_what_is_in_flight():
    _, now = on_volume(PAPER, level(3, in_flight=5000))
    assert now == ()


def test_guarded_counts_what_is_in_flight_up_to_ut():
    schedule, now = on_volume(GUARDED, level(3, in_flight=5))
    assert now == ("hold_inputs",)
    assert not schedule.may_send(level(3, in_flight=5), 1)


def test_what_is_trained_on_meanwhile_is_credit_beyond_ut():
    """100 samples/s and 2 s to an answer: 200 in flight are no reason to hold."""
    far = {"lead": 200, "credit": 300}
    assert GUARDED.may_send(level(0, in_flight=250, **far), 50)
    assert not GUARDED.may_send(level(0, in_flight=251, **far), 50)
    schedule, now = on_volume(GUARDED, level(0, in_flight=301, **far))
    assert now == ("hold_inputs",)
    _, now = on_volume(schedule, level(0, in_flight=290, **far))
    assert now == ("send_inputs",)  # no teacher waits for a threshold that is passed


def test_sending_goes_on_when_the_answer_would_arrive_at_lt():
    schedule = Schedule(lt=4, ut=1000, sending=False)
    far = {"lead": 200, "credit": 300}
    assert on_volume(schedule, level(0, in_flight=204, **far))[1] == ()
    assert on_volume(schedule, level(0, in_flight=203, **far))[1] == ("send_inputs",)


def test_what_came_too_early_does_not_hold_what_comes_next():
    """In strict order labels wait for those before them: they are no reserve."""
    schedule, now = on_volume(GUARDED, level(100, in_flight=100, credit=300, lead=200))
    assert now == ()
    assert schedule.may_send(level(100, in_flight=100, credit=300, lead=200), 100)


def test_memory_bounds_what_is_in_flight():
    schedule = Schedule(lt=4, ut=8, max_in_flight=100)
    assert not schedule.may_send(level(0, in_flight=90, credit=300, lead=200), 20)
    assert schedule.may_send(level(0, in_flight=80, credit=300, lead=200), 20)
    assert Schedule(lt=4, ut=400, max_in_flight=100).may_send(level(0), 200)  # one part


def test_guarded_asks_and_releases_as_the_supply_says():
    schedule, now = on_volume(GUARDED, level(0, wants_teacher=True))
    assert now == ("request_teacher",)
    assert on_volume(schedule, level(0, wants_teacher=True))[1] == ()  # one at a time
    assert on_volume(GUARDED, level(0))[1] == ()  # an empty store alone is no reason
    assert on_volume(GUARDED, level(5, spares_teacher=True))[1] == ("release_teacher",)
    assert on_volume(PAPER, level(5, spares_teacher=True))[1] == ()


@given(st.lists(st.integers(0, 12)), st.sampled_from([PAPER, GUARDED]))
def test_hold_and_send_alternate(volumes, schedule):
    switches = [i for i in replay(volumes, schedule) if i.endswith("_inputs")]
    assert switches == (["hold_inputs", "send_inputs"] * len(switches))[: len(switches)]


@given(
    st.integers(1, 8),
    st.integers(0, 40),
    st.lists(st.sampled_from(["send", "answer", "train"])),
)
def test_unused_and_in_flight_never_pass_ut_or_the_credit(batch, credit, moves):
    schedule = Schedule(lt=4, ut=16, batch=batch)
    unused = in_flight = 0
    for move in moves:
        now = level(unused, in_flight, credit=credit, lead=credit // 2)
        schedule, _ = on_volume(schedule, now)
        if move == "send" and schedule.may_send(now, batch):
            in_flight += batch
        elif move == "answer" and in_flight:
            in_flight, unused = in_flight - batch, unused + batch
        elif move == "train" and unused:
            unused -= batch
        assert unused + in_flight <= max(16, credit)


@given(st.integers(1, 6), st.integers(0, 20), st.integers(0, 20))
def test_it_never_holds_for_ever(batch, extra, credit):
    """An empty buffer always ends in sending, whatever the thresholds."""
    schedule = Schedule(lt=0, ut=batch + extra, batch=batch, sending=False)
    schedule, _ = on_volume(schedule, level(0, credit=credit))
    assert schedule.sending


@pytest.mark.parametrize(
    ("lt", "ut", "batch"), [(8, 4, 1), (4, 4, 1), (1, 4, 5), (-1, 4, 1)]
)
def test_refuses_thresholds_that_cannot_work(lt, ut, batch):
    with pytest.raises(ValueError, match=f"ut={ut}"):
        Schedule(lt=lt, ut=ut, batch=batch)


@pytest.mark.parametrize("batch", [8, 64, 1024, 4096])
def test_nobodys_thresholds_fit_every_batch(batch):
    lt, ut = default_thresholds(batch)
    Schedule(lt=lt, ut=ut, batch=batch)
    assert lt >= 2 * batch
