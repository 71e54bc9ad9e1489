"""Section 3.4: at-least-once work, exactly-once delivery, under any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.edl_dist.in_flight import InFlight, Part, Speed

A, B = Part(0, 0, 0, 5), Part(0, 1, 0, 5)


def ledger_of(rates=(), limit=2, most=9, **options):
    ledger = InFlight(limit=limit, ahead_s=0.0, **options)
    for name, rate in dict(rates).items():
        ledger.on_speed(name, Speed(rate, 1, most))
    return ledger


def first(place):
    return place and place[1]


def with_sent(*calls, limit=2, rates=()):
    ledger = ledger_of(dict.fromkeys("tu", 10.0) | dict(rates), limit)
    for part, teacher, lease in calls:
        ledger.on_fresh(part)
        ledger.on_sent(part, teacher, lease, 0.0)
    return ledger


def test_case_2_an_idle_teacher_leaves_nothing_to_send_again():
    ledger = ledger_of({"t": 1.0})
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.next_waiting("t") is None


def test_case_3_what_was_awaited_is_sent_again_oldest_first():
    ledger = with_sent((B, "t", 1), (A, "t", 1))
    assert ledger.on_teacher_lost("t", 1) == 2
    assert ledger.samples == 10  # lost samples still count as in flight
    assert ledger.next_waiting("u") == A
    assert ledger.next_waiting("u") == B
    assert ledger.resends == 2


def test_a_lost_part_is_cut_again_to_what_its_new_teacher_does_in_half_a_second():
    """It was cut to all that the teacher takes at once: 1,000 samples went to one of 20/s."""
    ledger = with_sent((A, "t", 1))
    ledger.on_teacher_lost("t", 1)
    ledger.on_speed("u", Speed(6.0, 1, 1000))
    assert ledger.next_waiting("u") == Part(0, 0, 0, 3)
    assert ledger.next_waiting("u") == Part(0, 0, 3, 5)
    assert ledger.next_waiting("u") is None


def test_a_late_answer_is_dropped_by_teacher_and_by_lease():
    ledger = with_sent((A, "t", 1))
    ledger.on_teacher_lost("t", 1)
    ledger.on_sent(ledger.next_waiting("t"), "t", 2, 1.0)  # the same teacher, a new lease
    assert ledger.on_answer(A, "t", 1) == (None, False)
    sent, counts = ledger.on_answer(A, "t", 2)
    assert (sent.time, counts) == (1.0, True)
    assert ledger.on_answer(A, "t", 2) == (None, False)
    assert ledger.samples == 0


def test_a_loss_under_an_old_lease_leaves_the_new_one_alone():
    ledger = with_sent((A, "t", 2))
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.on_answer(A, "t", 2)


def test_of_a_hedge_the_first_answer_counts_and_the_slow_teacher_stays_busy():
    ledger = ledger_of({"slow": 1.0, "quick": 9.0}, limit=1)
    ledger.on_fresh(A)
    ledger.on_sent(A, "slow", 1, 0.0)
    ledger.on_hedged(A, "quick", 2, 1.0)
    assert ledger.samples == 5  # once, not twice
    assert ledger.on_answer(A, "quick", 2)[1]
    assert first(ledger.free()) == "quick"
    ledger.on_unusable("quick")
    assert ledger.free() is None  # the slow one still computes A
    sent, counts = ledger.on_answer(A, "slow", 1)
    assert (sent.time, counts) == (0.0, False)  # what it took is known all the same
    assert first(ledger.free()) == "slow"


@pytest.mark.parametrize("first_answer", ["late", "compared"])
def test_a_teacher_that_owes_a_part_twice_is_free_after_both_answers(first_answer):
    """A hedge that came second, and a comparison: its room was lost for good."""
    ledger = ledger_of({"slow": 1.0, "quick": 9.0}, limit=1)
    ledger.on_fresh(A)
    ledger.on_sent(A, "quick", 2, 0.0)
    ledger.on_hedged(A, "slow", 1, 1.0)
    ledger.on_answer(A, "quick", 2)
    ledger.on_check(A, "slow", 1, 2.0)
    ledger.on_unusable("quick")
    assert len(list(ledger.outstanding())) == 2
    answers = [ledger.on_answer, ledger.on_checked]
    for answer in answers if first_answer == "late" else reversed(answers):
        assert ledger.free() is None  # it still computes
        answer(A, "slow", 1)
    assert first(ledger.free()) == "slow"
    assert not ledger.owed


def test_a_hedged_part_is_not_sent_again_when_one_of_two_teachers_is_lost():
    ledger = with_sent((A, "t", 1))
    ledger.on_hedged(A, "u", 2, 1.0)
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.on_teacher_lost("u", 2) == 1


def test_the_part_itself_counts_for_who_is_done_first():
    """50 samples: an idle teacher of 10/s is done after 5 s, a busy one of 100/s after 1."""
    part = Part(0, 0, 0, 50)
    ledger = ledger_of(part_s=5.0)
    ledger.on_speed("slow", Speed(10.0, 50, 50))
    ledger.on_speed("busy", Speed(100.0, 50, 50))
    ledger.on_fresh(part)
    ledger.on_sent(part, "busy", 1, 0.0)
    assert ledger.done_in_s("busy", 50) == 1.0
    assert ledger.free() == (1.0, "busy")


def test_another_one_for_a_part_is_who_has_this_part_first():
    """By their usual parts the slow one was first: 1,000 samples for one of 20/s."""
    ledger = ledger_of(part_s=0.5)
    ledger.on_speed("slow", Speed(20.0, 1, 1000))
    ledger.on_speed("quick", Speed(2000.0, 1, 1000))
    for number in range(2):
        part = Part(0, number, 0, 1000)
        ledger.on_fresh(part)
        ledger.on_sent(part, "quick", 1, 0.0)
    assert ledger.second(Part(0, 2, 0, 1000), (), room=False) == "quick"
    assert ledger.second(Part(0, 2, 0, 10), (), room=False) == "slow"
    assert ledger.second(Part(0, 2, 0, 1000), (), room=True) == "slow"
    assert ledger.second(Part(0, 2, 0, 10), ("slow", "quick"), room=False) is None


def test_a_part_of_many_seconds_is_followed_by_no_second_one():
    """It would wait there: the way of 10 ms is nothing beside it, one of a second is much."""
    part = Part(0, 0, 0, 8)
    for way_s, room in ((0.01, None), (1.0, "slow")):
        ledger = InFlight()
        ledger.on_speed("slow", Speed(2.0, 8, 8, way_s))
        ledger.on_fresh(part)
        ledger.on_sent(part, "slow", 1, 0.0)
        assert first(ledger.free()) == room


def test_on_a_long_way_there_is_as_much_as_is_computed_meanwhile():
    """A second of work was all there could be: 26 % of what it could do, half a second away."""
    ledger = InFlight()
    ledger.on_speed("far", Speed(100.0, 1, 250, way_s=1.0, ahead_s=1.0))
    samples = 0
    while ledger.free() is not None:
        part = Part(0, samples, 0, 50)
        ledger.on_fresh(part)
        ledger.on_sent(part, "far", 1, 0.0)
        samples += 50
    assert samples == 200
    assert ledger.busy() == (2.5, "far")


def test_one_that_is_late_counts_as_slow_until_it_answers():
    ledger = with_sent((A, "t", 1), (B, "u", 1), rates={"u": 8.0})
    assert first(ledger.free()) == "t"
    ledger.on_doubt("t", 2.0)
    assert first(ledger.free()) == "u"
    ledger.on_doubt("t", 5.0)
    assert ledger.teachers["t"].rate == 2.0
    ledger.on_speed("t", Speed(10.0, 1, 9))
    assert first(ledger.free()) == "t"


def test_parts_take_about_half_a_second_and_are_alike():
    assert Speed(38.0, 1, 256).part(256, 0.5) == 20
    assert Speed(2000.0, 1, 4096).part(1024, 0.5) == 1024  # and not 1000 and 24
    assert Speed(38.0, 64, 256).part(256, 0.5) == 64  # below, it would waste itself
    assert Speed(1e6, 1, 100).part(1024, 0.5) <= 100
    assert Speed(5.0, 1, 64).part(3, 0.5) == 3


def test_a_quick_teacher_gets_as_many_short_parts_as_fill_a_second():
    ledger = InFlight(limit=2, ahead_s=1.0)
    ledger.on_speed("quick", Speed(80.0, 1, 8))
    parts = [Part(0, i, 0, 8) for i in range(20)]
    while ledger.free() is not None:
        part = parts.pop(0)
        ledger.on_fresh(part)
        ledger.on_sent(part, "quick", 1, 0.0)
    assert len(parts) == 10


def test_a_part_cannot_be_out_twice():
    ledger = with_sent((A, "t", 1))
    with pytest.raises(ValueError, match="out already"):
        ledger.on_sent(A, "u", 1, 0.0)


@settings(max_examples=examples(300), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 4))
def test_every_sample_is_delivered_exactly_once(chance, tasks, teachers):
    """Random losses, hedges, cuts and late answers; then the rest is answered."""
    ledger = ledger_of(limit=3)
    fresh = [Part(0, i, 0, chance.randint(1, 7)) for i in range(tasks)]
    wanted = sorted((p.batch, s) for p in fresh for s in range(p.stop))
    leases = {f"t{i}": i for i in range(teachers)}
    calls, delivered = [], []

    def send(move):
        for name in leases:
            ledger.on_speed(name, Speed(1.0, 1, chance.randint(1, 4)))
        teacher = first(ledger.free())
        if teacher is None:
            return
        part = ledger.next_waiting(teacher)
        if part is None and fresh:
            part = fresh.pop(0)
            ledger.on_fresh(part)
        if part is not None:
            ledger.on_sent(part, teacher, leases[teacher], float(move))
            calls.append((part, teacher, leases[teacher]))

    def answer(call):
        if ledger.on_answer(*call)[1]:
            delivered.extend((call[0].batch, s) for s in range(call[0].start, call[0].stop))

    for move in range(10 * tasks):
        kind = chance.choice(["send", "answer", "lose", "hedge"])
        if kind == "send":
            send(move)
        elif kind == "answer" and calls:
            answer(chance.choice(calls))  # also calls that were given up on long ago
        elif kind == "hedge" and ledger.sent:
            part = chance.choice(list(ledger.sent))
            second = ledger.second(part, {o.teacher for o in ledger.sent[part]}, room=True)
            if second is not None:
                ledger.on_hedged(part, second, leases[second], float(move))
                calls.append((part, second, leases[second]))
        elif kind == "lose":
            teacher = chance.choice(list(leases))
            ledger.on_teacher_lost(teacher, leases[teacher])
            leases[teacher] = max(leases.values()) + 1
    while ledger.sent or ledger.waiting or fresh:  # nothing is lost any more
        for part, out in list(ledger.outstanding()):
            answer((part, out.teacher, out.lease))
        send(0)
    for part, out in list(ledger.outstanding()):
        answer((part, out.teacher, out.lease))
    assert sorted(delivered) == wanted
    assert ledger.samples == 0
    assert not ledger.loads
