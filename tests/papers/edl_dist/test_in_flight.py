"""Section 3.4: at-least-once work, exactly-once delivery, under any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.papers.edl_dist.in_flight import InFlight, Part

A, B = Part(0, 0, 0, 5), Part(0, 1, 0, 5)


def with_sent(*calls, limit=2):
    ledger = InFlight(limit=limit)
    for part, teacher, lease in calls:
        ledger.on_fresh(part)
        ledger.on_sent(part, teacher, lease, 0.0)
    return ledger


def test_case_2_an_idle_teacher_leaves_nothing_to_send_again():
    ledger = InFlight()
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.next_waiting(10) is None


def test_case_3_what_was_awaited_is_sent_again_oldest_first():
    ledger = with_sent((B, "t", 1), (A, "t", 1))
    assert ledger.on_teacher_lost("t", 1) == 2
    assert ledger.samples == 10  # lost samples still count as in flight
    assert ledger.next_waiting(10) == A
    assert ledger.next_waiting(10) == B
    assert ledger.resends == 2


def test_a_lost_part_is_cut_again_for_a_teacher_that_takes_less():
    ledger = with_sent((A, "t", 1))
    ledger.on_teacher_lost("t", 1)
    assert ledger.next_waiting(3) == Part(0, 0, 0, 3)
    assert ledger.next_waiting(3) == Part(0, 0, 3, 5)
    assert ledger.next_waiting(3) is None


def test_a_late_answer_is_dropped_by_teacher_and_by_lease():
    ledger = with_sent((A, "t", 1))
    ledger.on_teacher_lost("t", 1)
    ledger.on_sent(ledger.next_waiting(9), "t", 2, 1.0)  # the same teacher, a new lease
    assert ledger.on_answer(A, "t", 1) is None
    assert ledger.on_answer(A, "t", 2).time == 1.0
    assert ledger.on_answer(A, "t", 2) is None
    assert ledger.late_answers == 2
    assert ledger.samples == 0


def test_a_loss_under_an_old_lease_leaves_the_new_one_alone():
    ledger = with_sent((A, "t", 2))
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.on_answer(A, "t", 2)


def test_of_a_hedge_the_first_answer_counts_and_the_slow_teacher_stays_busy():
    ledger = with_sent((A, "slow", 1), limit=1)
    ledger.on_hedged(A, "quick", 2, 1.0)
    assert ledger.samples == 5  # once, not twice
    assert ledger.on_answer(A, "quick", 2)
    assert ledger.pick({"slow": 1.0, "quick": 1.0}) == "quick"
    assert ledger.pick({"slow": 1.0}) is None  # it still computes A
    assert ledger.on_answer(A, "slow", 1) is None
    assert ledger.pick({"slow": 1.0}) == "slow"


def test_a_hedged_part_is_not_sent_again_when_one_of_two_teachers_is_lost():
    ledger = with_sent((A, "t", 1))
    ledger.on_hedged(A, "u", 2, 1.0)
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.on_teacher_lost("u", 2) == 1


def test_picks_the_teacher_that_would_be_done_first():
    ledger = with_sent((A, "quick", 1), (B, "slow", 1))
    assert ledger.pick({"quick": 100.0, "slow": 10.0}) == "quick"
    assert ledger.pick({"quick": 1.0, "idle": 0.1}) == "idle"
    assert ledger.pick({}) is None
    assert ledger.pick({"quick": 1.0}, but_not=A) is None


def test_a_part_cannot_be_out_twice():
    ledger = with_sent((A, "t", 1))
    with pytest.raises(ValueError, match="out already"):
        ledger.on_sent(A, "u", 1, 0.0)


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 4))
def test_every_sample_is_delivered_exactly_once(chance, tasks, teachers):
    """Random losses, hedges, cuts and late answers; then the rest is answered."""
    ledger = InFlight(limit=3)
    fresh = [Part(0, i, 0, chance.randint(1, 7)) for i in range(tasks)]
    wanted = sorted((p.batch, s) for p in fresh for s in range(p.stop))
    leases = {f"t{i}": i for i in range(teachers)}
    rates = dict.fromkeys(leases, 1.0)
    calls, delivered = [], []

    def send(move):
        teacher = ledger.pick(rates)
        if teacher is None:
            return
        part = ledger.next_waiting(chance.randint(1, 4))
        if part is None and fresh:
            part = fresh.pop(0)
            ledger.on_fresh(part)
        if part is not None:
            ledger.on_sent(part, teacher, leases[teacher], float(move))
            calls.append((part, teacher, leases[teacher]))

    def answer(call):
        if ledger.on_answer(*call):
            delivered.extend((call[0].batch, s) for s in range(call[0].start, call[0].stop))

    for move in range(10 * tasks):
        kind = chance.choice(["send", "answer", "lose", "hedge"])
        if kind == "send":
            send(move)
        elif kind == "answer" and calls:
            answer(chance.choice(calls))  # also calls that were given up on long ago
        elif kind == "hedge" and ledger.sent:
            part = chance.choice(list(ledger.sent))
            other = ledger.pick(rates, but_not=part)
            if other is not None:
                ledger.on_hedged(part, other, leases[other], float(move))
                calls.append((part, other, leases[other]))
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
