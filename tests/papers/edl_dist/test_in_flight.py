"""Section 3.4: at-least-once work, exactly-once delivery, under any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.papers.edl_dist.in_flight import InFlight

A, B = (0, 0), (0, 1)


def test_case_2_an_idle_teacher_leaves_nothing_to_send_again():
    ledger = InFlight()
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.next_again() is None


def test_case_3_what_was_awaited_is_sent_again_oldest_first():
    ledger = InFlight()
    ledger.on_sent(B, 5, "t", 1, 0.0)
    ledger.on_sent(A, 5, "t", 1, 0.0)
    assert ledger.on_teacher_lost("t", 1) == 2
    assert ledger.next_again() == A
    ledger.on_sent(A, 5, "u", 2, 1.0)
    assert ledger.sent[A].attempt == 2
    assert ledger.next_again() == B


def test_a_late_answer_is_dropped_by_teacher_and_by_lease():
    ledger = InFlight()
    ledger.on_sent(A, 5, "t", 1, 0.0)
    ledger.on_teacher_lost("t", 1)
    ledger.on_sent(A, 5, "t", 2, 1.0)  # the same teacher under a new lease
    assert not ledger.on_answer(A, "t", 1)
    assert ledger.on_answer(A, "t", 2)
    assert not ledger.on_answer(A, "t", 2)
    assert ledger.late_answers == 2


def test_a_loss_under_an_old_lease_leaves_the_new_one_alone():
    ledger = InFlight()
    ledger.on_sent(A, 5, "t", 2, 0.0)
    assert ledger.on_teacher_lost("t", 1) == 0
    assert ledger.on_answer(A, "t", 2)


def test_lost_samples_still_count_as_in_flight():
    ledger = InFlight()
    ledger.on_sent(A, 5, "t", 1, 0.0)
    ledger.on_teacher_lost("t", 1)
    assert ledger.samples == 5


def test_picks_the_least_loaded_teacher_below_its_limit():
    ledger = InFlight(limit=1)
    ledger.on_sent(A, 1, "t", 1, 0.0)
    assert ledger.pick(["t", "u"]) == "u"
    assert ledger.pick(["t"]) is None
    assert ledger.pick([]) is None


def test_a_task_cannot_be_out_twice():
    ledger = InFlight()
    ledger.on_sent(A, 1, "t", 1, 0.0)
    with pytest.raises(ValueError, match="out already"):
        ledger.on_sent(A, 1, "u", 1, 0.0)


@settings(max_examples=300)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(1, 4))
def test_every_task_is_delivered_exactly_once(chance, tasks, teachers):
    """Random losses, failures and late answers; then the rest is answered."""
    ledger = InFlight(limit=3)
    fresh = [(0, i) for i in range(tasks)]
    leases = {f"t{i}": i for i in range(teachers)}
    calls, delivered = [], []
    for move in range(10 * tasks + 200):
        calm = move > 10 * tasks  # nothing is lost any more: it must come to an end
        kind = chance.choice(["send", "answer"] if calm else ["send", "answer", "lose"])
        if kind == "send":
            task = ledger.next_again() or (fresh[0] if fresh else None)
            teacher = ledger.pick(leases)
            if task is not None and teacher is not None:
                if task in fresh:
                    fresh.remove(task)
                ledger.on_sent(task, 1, teacher, leases[teacher], float(move))
                calls.append((task, teacher, leases[teacher]))
        elif kind == "answer" and calls:
            call = chance.choice(calls)  # also calls that were given up on long ago
            if ledger.on_answer(*call):
                delivered.append(call[0])
        elif kind == "lose":
            teacher = chance.choice(list(leases))
            ledger.on_teacher_lost(teacher, leases[teacher])
            leases[teacher] = max(leases.values()) + 1
    while ledger.sent or ledger.again or fresh:
        for task, out in list(ledger.sent.items()):
            if ledger.on_answer(task, out.teacher, out.lease):
                delivered.append(task)
        task = ledger.next_again() or (fresh.pop(0) if fresh else None)
        if task is not None:
            ledger.on_sent(task, 1, "t0", leases["t0"], 0.0)
    assert sorted(delivered) == [(0, i) for i in range(tasks)]
    assert ledger.samples == 0
