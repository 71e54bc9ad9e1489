"""When what is in flight may pass ut."""

import pytest

from kdlab.papers.edl_dist.beyond.flow_control import FlowControl, StudentPace

STEP_S, BATCH = 0.1, 10


def trained(supply, seconds, *, waiting=0.0, held=False, start=0.0):
    """Steps of 0.1 s, each after so long a wait; `held`: thresholds keep a teacher idle."""
    time = start
    while time < start + seconds:
        supply.on_tick(time, held=held)
        if waiting:
            supply.on_waits(time)
            time += waiting
            supply.on_tick(time, held=held)
            supply.on_fed(time)
        time += STEP_S
        supply.on_trained(BATCH, time)
    return time


def new_supply():
    """The first answer came late, as from a pool that has only started."""
    supply = FlowControl(StudentPace(200.0, BATCH), capacity=800.0, reach_s=2.0)
    supply.on_answer(2.0)
    return supply


def test_ut_holds_where_it_suffices():
    supply = new_supply()
    assert supply.credit == 0
    time = trained(supply, 5.0, waiting=0.3, held=False)  # teachers are short, not ut
    time = trained(supply, 30.0, held=True, start=time)  # nobody waits for what is held
    assert supply.credit == 0


def test_a_wait_by_the_start_alone_is_no_reason():
    supply = new_supply()
    trained(supply, 3 * (STEP_S + 2.0), waiting=2.0, held=True)  # until its pace is known
    assert not supply.ut_held_it_up


def test_waiting_for_the_first_teacher_does_not_call_for_a_second():
    """A pool that starts at none: the student waits for as long as a teacher takes to load."""
    supply = FlowControl(StudentPace(200.0, BATCH))
    supply.on_waits(0.0)
    for tick in range(120):
        supply.on_tick(tick / 20, held=False)
    supply.on_capacity(800.0, 6.0)
    supply.on_fed(6.5)
    supply.on_answer(0.5)
    time = trained(supply, 2.0, start=6.5)
    supply.on_tick(time, held=False)
    assert supply.short_of(time) == "nothing"
    trained(supply, 6.0, waiting=0.3, start=time)  # now it does wait beside a teacher
    assert supply.short_of(time + 6.0) == "teachers"


def test_a_student_that_waits_for_what_ut_holds_gets_what_the_latency_calls_for():
    supply = new_supply()
    trained(supply, 3.0, waiting=0.2, held=True)
    assert supply.demand == pytest.approx(BATCH / STEP_S)
    assert supply.credit == int(2.0 * supply.demand * 2.0) + 2 * BATCH
