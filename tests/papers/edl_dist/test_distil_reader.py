"""The reader's decisions: exactly once, bounded volume, order, hedges, waiting."""

import random
from collections import Counter
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdlab.papers.edl_dist.distil_reader import DistilReader, Rules, Teacher
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Complain,
    Deliver,
    Fail,
    GiveBack,
    Keep,
    Release,
    Say,
    Send,
    TakeCached,
)

SIZES = [4, 4, 4, 2]


def reader(epochs=3, sizes=SIZES, start=(0, ()), cached=lambda e, b: False, **rules):
    given_rules = {"t_s": 10.0, "lt": 4, "ut": 16, "slots": 2} | rules
    machine = DistilReader(
        Rules(**given_rules),
        lambda epoch: sizes,
        epochs=epochs,
        epoch=start[0],
        done=start[1],
        cached=cached,
    )
    machine.on_announced()
    return machine


def teacher(name, lease=1, t_t=10.0, best_batch=64, draining=False):
    return Teacher(name, lease, t_t, best_batch, draining, {"name": name.upper()})


def only(kind, told):
    return [i for i in told if isinstance(i, kind)]


def said(told):
    return [i.event for i in only(Say, told)]


def test_batches_are_cut_to_what_a_teacher_computes_best_and_put_together():
    machine = reader(per_teacher=4)
    told = machine.on_teachers([teacher("t", best_batch=3)], {}, True, 0.0)
    parts = [s.part for s in only(Send, told)]
    assert [(p.batch, p.start, p.stop) for p in parts[:2]] == [(0, 0, 3), (0, 3, 4)]
    told = machine.on_answer(parts[1], "t", 1, 1.0)
    assert only(Keep, told)
    assert not only(Deliver, told)
    assert only(Deliver, machine.on_answer(parts[0], "t", 1, 1.0)) == [Deliver(0, 0)]


def test_strict_waits_for_the_plans_next_batch_and_any_does_not():
    for order, first in (("strict", []), ("any", [Deliver(0, 1)])):
        machine = reader(order=order)
        sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
        told = machine.on_answer(sent[1].part, "t", 1, 1.0)
        assert only(Deliver, told) == first


def test_two_teachers_requests_are_in_flight_with_each():
    machine = reader()
    told = machine.on_teachers([teacher("t"), teacher("u")], {}, True, 0.0)
    assert sorted(s.teacher for s in only(Send, told)) == ["t", "t", "u", "u"]


def test_an_expired_teachers_work_goes_to_another_at_once():
    machine = reader()
    machine.on_teachers([teacher("t")], {}, True, 0.0)
    told = machine.on_teachers([teacher("u", 2)], {"t": "expired"}, False, 5.0)
    assert [s.teacher for s in only(Send, told)] == ["u", "u"]
    (lost,) = [i.data for i in only(Say, told) if i.event == "teacher_lost"]
    assert lost["why"] == "silent beyond its lease"
    assert lost["resent"] == 2
    assert lost["teacher"] == "T"


@pytest.mark.parametrize("how", ["left", "moved", "released"])
def test_a_teacher_that_goes_politely_still_answers(how):
    machine = reader()
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    told = machine.on_teachers([teacher("u", 2)], {"t": how}, False, 1.0)
    assert machine.ledger.resends == 0
    assert "teacher_left" in said(told)
    assert only(Keep, machine.on_answer(sent[0].part, "t", 1, 2.0))


def test_a_draining_teacher_gets_no_more():
    machine = reader()
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    told = machine.on_teachers([teacher("t", draining=True)], {}, False, 1.0)
    assert said(told) == ["teacher_left"]
    told = machine.on_answer(sent[0].part, "t", 1, 2.0)
    assert only(Keep, told)
    assert not only(Send, told)


def test_a_lease_given_up_on_is_not_taken_back_but_a_new_one_is():
    machine = reader()
    machine.on_teachers([teacher("t", 1)], {}, True, 0.0)
    told = machine.on_trouble("t", 1, "no answer", unusable=False, time=1.0)
    assert only(GiveBack, told) == [GiveBack("t", 1, 1.0)]
    assert not only(Send, machine.on_teachers([teacher("t", 1)], {}, True, 2.0))
    assert only(Send, machine.on_teachers([teacher("t", 2)], {}, True, 3.0))
    told = machine.on_trouble("t", 2, "no answer", unusable=False, time=4.0)
    assert only(GiveBack, told) == [GiveBack("t", 2, 2.0)]  # the back-off doubles


def test_an_unusable_answer_is_complained_about_and_sent_elsewhere():
    machine = reader()
    machine.on_teachers([teacher("t"), teacher("u", 2)], {}, True, 0.0)
    told = machine.on_trouble("t", 1, "NaN", unusable=True, time=1.0)
    assert only(Complain, told) == [Complain("t", 1, "NaN")]
    assert machine.ledger.resends == 2


def test_an_overdue_part_is_asked_of_a_second_teacher_once():
    machine = reader(per_teacher=3)
    told = machine.on_teachers([teacher("slow"), teacher("quick", 2)], {}, True, 0.0)
    hung = next(s.part for s in only(Send, told) if s.teacher == "slow")
    for sent in only(Send, told):
        if sent.teacher == "quick":
            machine.on_answer(sent.part, "quick", 2, 0.1)
    told = machine.on_look(6.0)
    assert Send(hung, "quick", 2) in told
    assert Send(hung, "quick", 2) not in machine.on_look(7.0)
    assert only(Keep, machine.on_answer(hung, "quick", 2, 8.0)) == [Keep(hung)]
    assert not only(Keep, machine.on_answer(hung, "slow", 1, 9.0))


def test_without_an_answer_for_long_the_teacher_is_given_up():
    machine = reader(give_up_s=30.0)
    machine.on_teachers([teacher("t")], {}, True, 0.0)
    assert not only(GiveBack, machine.on_look(29.0))
    told = machine.on_look(30.5)
    assert only(GiveBack, told)
    assert "no_teacher" in said(told)


def test_it_fails_only_when_the_student_misses_a_teacher_for_long():
    machine = reader(wait_s=10.0, slots=2)
    machine.on_look(9.0)
    assert not only(Fail, machine.on_look(9.9))
    assert only(Fail, machine.on_look(10.1))
    fed = reader(wait_s=10.0)
    sent = only(Send, fed.on_teachers([teacher("t")], {}, True, 0.0))
    fed.on_answer(sent[0].part, "t", 1, 0.1)
    fed.on_teachers([], {"t": "lost"}, False, 0.2)
    assert not only(Fail, fed.on_look(100.0))  # it still has a batch to train on


def test_the_demand_comes_before_any_extra_teacher():
    machine = DistilReader(
        Rules(t_s=1.0, lt=1, ut=8, policy="paper"), lambda e: [2], epochs=1
    )
    assert not only(AskTeacher, machine.on_look(0.0))
    machine.on_announced()
    assert only(AskTeacher, machine.on_look(0.1))


def test_a_slow_student_releases_its_slowest_teacher():
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    teachers = [teacher("quick", 1, 20.0), teacher("slow", 2, 5.0)]
    sent = only(Send, machine.on_teachers(teachers, {}, True, 0.0))
    for send in sent:
        machine.on_answer(send.part, send.teacher, send.lease, 0.1)
    released = [r for t in range(1, 200) for r in only(Release, machine.on_look(t / 10))]
    assert released == [Release("slow")]


def test_a_teacher_ten_times_slower_is_asked_as_much_less():
    """Each teacher does one part after the other, in 1 s or in 10."""
    machine = reader(epochs=1, sizes=[4] * 400, ut=64, hedge=False, window_s=1e9)
    takes, asked, now = {"quick": 1.0, "slow": 10.0}, Counter(), 0.0
    under_way, free_at = [], dict.fromkeys(takes, 0.0)
    told = machine.on_teachers([teacher("quick", 1), teacher("slow", 2)], {}, True, now)
    while now < 200.0:
        for sent in only(Send, told):
            asked[sent.teacher] += 1
            free_at[sent.teacher] = max(now, free_at[sent.teacher]) + takes[sent.teacher]
            under_way.append((free_at[sent.teacher], sent))
        under_way.sort(key=itemgetter(0))
        now, done = under_way.pop(0)
        told = list(machine.on_answer(done.part, done.teacher, done.lease, now))
        for so_far in told:  # more come while we look: a batch is trained on at once
            if isinstance(so_far, Deliver):
                told += machine.on_slot_free(4, now)
    assert asked["slow"] <= 0.15 * asked["quick"]


def test_known_labels_need_no_teacher():
    machine = reader(cached=lambda epoch, batch: (epoch, batch) != (0, 2), slots=4, ut=40)
    told = machine.on_look(0.0)
    assert [i.part.batch for i in only(TakeCached, told)] == [0, 1]
    assert only(Deliver, told) == [Deliver(0, 0), Deliver(0, 1)]
    (sent,) = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.1))
    assert sent.part.batch == 2


def test_thresholds_that_are_set_bind_at_once():
    machine = reader(per_teacher=99)
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert sum(s.part.size for s in sent) == 14  # whole batches, up to ut
    more = only(Send, machine.on_thresholds(8, 24, 0.1))
    assert sum(s.part.size for s in more) == 8
    machine.on_thresholds(1, 5, 0.2)
    for s in sent[:3]:
        machine.on_answer(s.part, "t", 1, 0.3)
        told = machine.on_slot_free(s.part.size, 0.4)
        assert not only(Send, told)  # 10 samples are still out, more than ut


def test_a_pause_gives_no_teacher_away():
    def released(paused):
        machine = reader(t_s=1.0, settle_s=1.0, window_s=2.0)
        machine.on_teachers([teacher("t"), teacher("slow", t_t=5.0)], {}, True, 0.0)
        if paused:
            machine.on_paused(True, 0.0)
        return [i for s in range(1, 60) for i in only(Release, machine.on_look(float(s)))]

    assert released(paused=False)
    assert not released(paused=True)


def test_a_resume_skips_what_was_done():
    machine = reader(start=(1, (0, 2)))
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert [(s.part.epoch, s.part.batch) for s in sent] == [(1, 1), (1, 3)]
    finished = reader(start=(1, (0, 1, 2, 3)))
    sent = only(Send, finished.on_teachers([teacher("t")], {}, True, 0.0))
    assert (sent[0].part.epoch, sent[0].part.batch) == (2, 0)


def test_teachers_that_come_and_go_without_an_answer_are_no_teachers():
    machine = reader(wait_s=10.0)
    for lease in range(1, 6):
        time = 3.0 * lease
        machine.on_teachers([teacher("t", lease=lease)], {}, True, time)
        machine.on_trouble(
            "t", lease, "its connection broke", unusable=False, time=time + 1
        )
    assert only(Fail, machine.on_look(17.0))
    machine = reader(wait_s=10.0, sizes=[4] * 50)  # the same, but each answers once
    for lease in range(1, 6):
        time = 3.0 * lease
        sent = only(Send, machine.on_teachers([teacher("t", lease=lease)], {}, True, time))
        told = machine.on_answer(sent[0].part, "t", lease, time)
        for _ in only(Deliver, told):
            machine.on_slot_free(4, time)
        machine.on_trouble(
            "t", lease, "its connection broke", unusable=False, time=time + 1
        )
    assert not only(Fail, machine.on_look(17.0))
    assert only(Fail, machine.on_look(27.0))


def test_half_a_batch_never_waits_behind_the_upper_threshold():
    machine = reader(sizes=[3], ut=4, lt=0, per_teacher=1)
    (first,) = only(Send, machine.on_teachers([teacher("t", best_batch=1)], {}, True, 0.0))
    (second,) = only(Send, machine.on_answer(first.part, "t", 1, 0.1))
    (third,) = only(Send, machine.on_answer(second.part, "t", 1, 0.2))
    assert only(Deliver, machine.on_answer(third.part, "t", 1, 0.3)) == [Deliver(0, 0)]


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["any", "strict"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 7),
)
def test_every_batch_once_and_never_more_than_ut(seed, order, sizes, best):
    """Teachers come, go, expire, hang and answer late in any order; then all is calm."""
    chance = random.Random(seed)
    epochs, ut = 3, 3 * max(sizes)
    machine = reader(epochs=epochs, sizes=sizes, order=order, ut=ut, lt=1)
    alive, lease, time = {}, 0, 0.0
    calls, slots, delivered = [], [], []

    def see(told):
        for told_now in told:
            if isinstance(told_now, Send):
                calls.append((told_now.part, told_now.teacher, told_now.lease))
            elif isinstance(told_now, Deliver):
                slots.append(sizes[told_now.batch])
                delivered.append((told_now.epoch, told_now.batch))
        assert machine.unused + machine.ledger.samples <= ut
        assert machine.slots_taken == len(slots) <= 2

    moves = 150
    while len(delivered) < epochs * len(sizes):
        time += 0.05
        moves -= 1
        calm = moves < 0
        kind = chance.choice(["look", "answer", "train", "join", "join", "gone", "trouble"])
        if calm:
            kind = chance.choice(["look", "answer", "answer", "train"])
            if not any(machine.teachers):
                kind = "join"
        if kind == "look":
            see(machine.on_look(time))
        elif kind == "answer" and calls:
            call = calls[-1] if calm else chance.choice(calls)
            calls.remove(call)
            see(machine.on_answer(*call, time))
        elif kind == "train" and slots:
            see(machine.on_slot_free(slots.pop(0), time))
        elif kind == "join":
            lease += 1
            name = chance.choice("abc")
            gone = {name: "lost"} if name in alive else {}
            alive[name] = lease
            new = teacher(name, lease, chance.choice([1.0, 9.0]), best)
            see(machine.on_teachers([new], gone, False, time))
        elif kind == "gone" and alive:
            name = chance.choice(sorted(alive))
            how = chance.choice(["lost", "expired", "left", "moved"])
            del alive[name]
            see(machine.on_teachers([], {name: how}, False, time))
        elif kind == "trouble" and alive:
            name = chance.choice(sorted(alive))
            see(machine.on_trouble(name, alive[name], "x", unusable=False, time=time))
        assert moves > -20_000, "it does not come to an end"
    assert sorted(delivered) == [(e, b) for e in range(epochs) for b in range(len(sizes))]
    if order == "strict":
        assert delivered == sorted(delivered)
