"""EDL-Dist Algorithm 1: hold above ut, send below lt, one more teacher at zero."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdlab.papers.edl_dist.hybrid_schedule import (
    Level,
    Schedule,
    on_teachers_changed,
    on_volume,
)

PAPER = Schedule(lt=4, ut=8, policy="paper")


def level(unused, in_flight=0, time=0.0, teachers=1, waits=False):
    return Level(
        time=time,
        unused=unused,
        in_flight=in_flight,
        teachers=teachers,
        student_waits=waits,
    )


def told(volumes, schedule=PAPER):
    """Replay buffer levels; what the reader was told, in order."""
    instructions = []
    for volume in volumes:
        schedule, now = on_volume(schedule, level(volume))
        instructions += now
    return instructions


def test_lines_4_and_10_hold_above_ut_and_send_again_below_lt():
    assert told([5, 7, 8, 7, 5, 4, 3, 5]) == ["hold_inputs", "send_inputs"]


def test_line_7_asks_for_one_teacher_until_it_joins():
    assert told([0, 0, 0]) == ["request_teacher"]
    starving, _ = on_volume(PAPER, level(0))
    joined, _ = on_teachers_changed(starving, 1.0)
    assert told([0], joined) == ["request_teacher"]


def test_what_is_in_flight_counts():
    schedule, now = on_volume(PAPER, level(3, in_flight=5))
    assert now == ("hold_inputs",)
    assert not schedule.may_send(level(3, in_flight=5), 1)


def test_guarded_does_not_ask_before_the_first_answers_can_be_there():
    schedule = Schedule(lt=4, ut=8, policy="guarded", settle_s=3)
    for time in (0.0, 1.0, 2.9):
        schedule, now = on_volume(schedule, level(0, time=time, waits=True))
        assert now == ()
    schedule, now = on_volume(schedule, level(0, time=3.0, waits=True))
    assert now == ("request_teacher",)


def test_guarded_asks_only_a_student_that_waits():
    schedule = Schedule(lt=4, ut=8, policy="guarded", settle_s=1)
    schedule, _ = on_volume(schedule, level(0, time=0.0))
    _, now = on_volume(schedule, level(0, time=5.0, waits=False))
    assert now == ()


def test_guarded_releases_a_teacher_when_sending_was_held_for_long():
    schedule = Schedule(lt=4, ut=8, policy="guarded", window_s=10)
    told_so_far = []
    for tick in range(150):
        schedule, now = on_volume(schedule, level(8, time=tick / 10, teachers=3))
        told_so_far += now
    assert told_so_far == ["hold_inputs", "release_teacher"]


def test_the_last_teacher_is_never_released():
    schedule = Schedule(lt=4, ut=8, policy="guarded", window_s=1)
    for tick in range(100):
        schedule, now = on_volume(schedule, level(8, time=tick, teachers=1))
        assert "release_teacher" not in now


@given(st.lists(st.integers(0, 12)))
def test_hold_and_send_alternate(volumes):
    switches = [i for i in told(volumes) if i.endswith("_inputs")]
    assert switches == (["hold_inputs", "send_inputs"] * len(switches))[: len(switches)]


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["send", "answer", "train"]), st.integers(1, 8))),
)
def test_volume_never_passes_ut(batch, moves):
    schedule = Schedule(lt=4, ut=16, batch=batch)
    unused = in_flight = 0
    for time, (move, _) in enumerate(moves):
        now = level(unused, in_flight, float(time))
        schedule, _ = on_volume(schedule, now)
        if move == "send" and schedule.may_send(now, batch):
            in_flight += batch
        elif move == "answer" and in_flight:
            in_flight, unused = in_flight - batch, unused + batch
        elif move == "train" and unused:
            unused -= batch
        assert unused + in_flight <= 16


@given(st.integers(1, 6), st.integers(0, 20))
def test_it_never_holds_for_ever(batch, extra):
    """An empty buffer always ends in sending, whatever the thresholds."""
    schedule = Schedule(lt=0, ut=batch + extra, batch=batch, sending=False)
    schedule, _ = on_volume(schedule, level(0))
    assert schedule.sending


@pytest.mark.parametrize(
    ("lt", "ut", "batch"), [(8, 4, 1), (4, 4, 1), (1, 4, 5), (-1, 4, 1)]
)
def test_refuses_thresholds_that_cannot_work(lt, ut, batch):
    with pytest.raises(ValueError, match=f"ut={ut}"):
        Schedule(lt=lt, ut=ut, batch=batch)
