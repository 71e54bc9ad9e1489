"""The reader's decisions: exactly once, bounded volume, order, hedges, waiting."""

import random
from collections import Counter
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Check,
    Complain,
    Deliver,
    EndCheck,
    Fail,
    GiveBack,
    Keep,
    Release,
    Say,
    Send,
    TakeCached,
)
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.spot_check import Witness

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
    return [i.event.KIND for i in only(Say, told)]


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
    (lost,) = [i.event for i in only(Say, told) if i.event.KIND == "teacher_lost"]
    assert lost["why"] == "silent beyond its lease"
    assert lost["resent"] == 2
    assert lost["teacher"] == "T"


@pytest.mark.parametrize("how", ["left", "moved", "released"])
def test_a_teacher_that_goes_gracefully_still_answers(how):
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
    told = machine.on_tick(6.0)
    assert Send(hung, "quick", 2) in told
    assert Send(hung, "quick", 2) not in machine.on_tick(7.0)
    assert only(Keep, machine.on_answer(hung, "quick", 2, 8.0)) == [Keep(hung)]
    assert not only(Keep, machine.on_answer(hung, "slow", 1, 9.0))


def test_without_an_answer_for_long_the_teacher_is_given_up():
    machine = reader(give_up_s=30.0)
    machine.on_teachers([teacher("t")], {}, True, 0.0)
    assert not only(GiveBack, machine.on_tick(29.0))
    told = machine.on_tick(30.5)
    assert only(GiveBack, told)
    assert "no_teacher" in said(told)


def test_it_fails_only_when_the_student_misses_a_teacher_for_long():
    machine = reader(wait_s=10.0, slots=2)
    machine.on_tick(9.0)
    assert not only(Fail, machine.on_tick(9.9))
    assert only(Fail, machine.on_tick(10.1))
    fed = reader(wait_s=10.0)
    sent = only(Send, fed.on_teachers([teacher("t")], {}, True, 0.0))
    fed.on_answer(sent[0].part, "t", 1, 0.1)
    fed.on_teachers([], {"t": "lost"}, False, 0.2)
    assert not only(Fail, fed.on_tick(100.0))  # it still has a batch to train on


def test_the_demand_comes_before_any_extra_teacher():
    machine = DistilReader(
        Rules(t_s=1.0, lt=1, ut=8, policy="paper"), lambda e: [2], epochs=1
    )
    assert not only(AskTeacher, machine.on_tick(0.0))
    machine.on_announced()
    assert only(AskTeacher, machine.on_tick(0.1))


def train_slowly(machine, told, rate, until, begin=0.0, size=4):
    """Answers come at once and the student does `rate` samples/s; all it said."""
    said_so_far, due, time = list(told), begin, begin
    while time < until:
        time += 0.05
        new = list(machine.on_tick(time))
        pending = [i for i in (*told, *new) if isinstance(i, Send)]
        told = []
        for sent in pending:
            answer = machine.on_answer(sent.part, sent.teacher, sent.lease, time)
            said_so_far += answer
            told += answer
        if machine.slots_taken and time >= due:
            due += size / rate
            freed = machine.on_slot_free(size, time)
            said_so_far += freed
            told += freed
        said_so_far += new
    return said_so_far


def test_a_slow_student_releases_its_slowest_teacher():
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    teachers = [teacher("quick", 1, 20.0), teacher("slow", 2, 5.0)]
    told = machine.on_teachers(teachers, {}, True, 0.0)
    (released,) = only(Release, train_slowly(machine, told, 4.0, 40.0))
    assert (released.teacher, released.lease) == ("slow", 2)
    assert released.need == pytest.approx(1.05 * 4.0, rel=0.1)


def test_a_student_that_needs_all_its_teachers_keeps_them():
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    teachers = [teacher("quick", 1, 20.0), teacher("slow", 2, 5.0)]
    told = machine.on_teachers(teachers, {}, True, 0.0)
    assert not only(Release, train_slowly(machine, told, 19.0, 40.0))


def starving(machine, told, seconds, rate):
    """Each teacher does `rate` samples/s, the student far more; all that was said."""
    said_so_far, under_way, free_at, time = list(told), [], Counter(), 0.0
    while time < seconds:
        for sent in only(Send, told):
            free_at[sent.teacher] = max(time, free_at[sent.teacher]) + sent.part.size / rate
            under_way.append((free_at[sent.teacher], sent))
        time += 0.05
        told = list(machine.on_tick(time))
        for due, sent in [u for u in under_way if u[0] <= time]:
            under_way.remove((due, sent))
            told += machine.on_answer(sent.part, sent.teacher, sent.lease, due)
        for so_far in told:
            if isinstance(so_far, Deliver):
                told += machine.on_slot_free(4, time)
        said_so_far += told
    return said_so_far


def test_a_starving_student_never_releases_and_asks_for_what_it_needs():
    """The defect B2: unused 0, much in flight, and a teacher released after 13 s."""
    machine = reader(epochs=10**6, sizes=[4] * 50, lt=256, ut=2048, t_s=2500.0)
    given = [teacher(f"t{i}", i, 38.0) for i in range(5)]
    said_so_far = starving(machine, machine.on_teachers(given, {}, True, 0.0), 60.0, 38.0)
    assert not only(Release, said_so_far)
    assert [a.need > 5 * 38.0 for a in only(AskTeacher, said_so_far)] == [True]


def test_thresholds_that_starve_a_student_are_named_with_what_would_do():
    """Strict order: what came too early fills the store while one part is awaited."""
    machine = reader(
        epochs=100, sizes=[4] * 50, order="strict", lt=4, ut=12, hedge=False, per_teacher=9
    )
    told = machine.on_teachers([teacher("t", t_t=100.0), teacher("u", 2)], {}, True, 0.0)
    first = next(s for s in only(Send, told) if s.part.batch == 0)
    for lap in range(3):  # the first batch of each lap comes late
        sent = only(Send, told)
        for s in sent:
            if s != first:
                told = [*told, *machine.on_answer(s.part, s.teacher, s.lease, lap * 9.0)]
    said_so_far = []
    machine.supply.latency_s = 0.1
    for tick in range(1, 400):
        said_so_far += machine.on_tick(tick / 10)
    (limit,) = [
        i.event for i in only(Say, said_so_far) if i.event.KIND == "threshold_limits"
    ]
    assert limit["ut"] == 12
    assert limit["enough"] >= 24


def test_others_that_come_and_go_do_not_reset_what_was_learned():
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    told = machine.on_teachers(
        [teacher("quick", 1, 20.0), teacher("slow", 2, 5.0)], {}, True, 0.0
    )
    released = []
    for number in range(30):  # one comes and goes each second
        name, lease = f"spot{number}", 10 + number
        told = [*told, *machine.on_teachers([teacher(name, lease, 1.0)], {}, False, number)]
        said_so_far = train_slowly(machine, told, 4.0, number + 1.0, begin=float(number))
        released += only(Release, said_so_far)
        told = machine.on_teachers([], {name: "lost"}, False, number + 1.0)
    assert "slow" in {r.teacher for r in released}


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
    told = machine.on_tick(0.0)
    assert [i.part.batch for i in only(TakeCached, told)] == [0, 1]
    assert only(Deliver, told) == [Deliver(0, 0), Deliver(0, 1)]
    (sent,) = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.1))
    assert sent.part.batch == 2


@pytest.mark.parametrize("order", ["any", "strict"])
def test_batches_that_are_trained_on_are_forgotten(order):
    """Of a strict run with a cache each cached batch stayed in the measure of latency."""
    machine = reader(epochs=1000, order=order, cached=lambda e, b: b != 1)
    told = list(machine.on_teachers([teacher("a")], {}, True, 0.0))
    delivered = 0
    while delivered < 1000:
        told += machine.on_tick(0.0)
        for now in tuple(told):
            told.remove(now)
            if isinstance(now, Send):
                told += machine.on_answer(now.part, now.teacher, now.lease, 0.0)
            elif isinstance(now, Deliver):
                delivered += 1
                told += machine.on_slot_free(SIZES[now.batch], 0.0)
    batches = machine.batches
    kept = [batches.missing, batches._begun, batches._whole, batches._ready]
    assert sum(map(len, [*kept, machine.provenance.kept, machine.ledger.sent])) < 30


def test_what_is_asked_for_already_is_not_asked_again_for_the_next_epoch():
    """Labels are kept: epoch 1 sees the views of epoch 0, whose answers are under way."""
    known = set()
    machine = reader(
        cached=lambda epoch, batch: batch in known, cache_views=1, ut=100, per_teacher=99
    )
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert {s.part.epoch for s in sent} == {0}
    told = []
    for one in sent:
        known.add(one.part.batch)
        told += machine.on_answer(one.part, "t", 1, 0.1)
    assert not only(Send, told)
    taken = [(i.part.epoch, i.part.batch) for i in only(TakeCached, told)]
    assert taken[:4] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_thresholds_that_are_set_bind_at_once():
    machine = reader(per_teacher=99)
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert sum(s.part.size for s in sent) == 14  # whole batches, up to ut
    assert machine.supply.credit == 0  # no latency is known yet
    more = only(Send, machine.on_thresholds(8, 24, 0.1))
    assert sum(s.part.size for s in more) == 8
    machine.on_thresholds(1, 5, 0.2)
    for s in sent[:3]:
        machine.on_answer(s.part, "t", 1, 0.3)
        told = machine.on_slot_free(s.part.size, 0.4)
        assert not only(Send, told)  # 10 samples are still out, more than ut


def test_a_pause_gives_no_teacher_away():
    def released(paused):
        machine = reader(epochs=100, t_s=1.0, settle_s=1.0, window_s=2.0)
        given = [teacher("t"), teacher("slow", 2, t_t=5.0)]
        train_slowly(machine, machine.on_teachers(given, {}, True, 0.0), 4.0, 2.5)
        if paused:
            machine.on_paused(True, 2.5)
        return only(Release, train_slowly(machine, [], 4.0, 30.0, begin=2.5))

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
    assert only(Fail, machine.on_tick(17.0))
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
    assert not only(Fail, machine.on_tick(17.0))
    assert only(Fail, machine.on_tick(27.0))


def test_half_a_batch_never_waits_behind_the_upper_threshold():
    machine = reader(sizes=[3], ut=4, lt=0, per_teacher=1, t_s=1.0)
    machine.ledger.ahead_s = 0.0
    (first,) = only(Send, machine.on_teachers([teacher("t", best_batch=1)], {}, True, 0.0))
    (second,) = only(Send, machine.on_answer(first.part, "t", 1, 0.1))
    (third,) = only(Send, machine.on_answer(second.part, "t", 1, 0.2))
    assert only(Deliver, machine.on_answer(third.part, "t", 1, 0.3)) == [Deliver(0, 0)]


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["any", "strict"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(1, 7),
)
def test_every_batch_once_and_never_more_than_its_bounds(seed, order, sizes, best):
    """Teachers come, go, expire, hang and answer late in any order; then all is calm."""
    chance = random.Random(seed)
    epochs, ut = 3, 3 * max(sizes)
    machine = reader(epochs=epochs, sizes=sizes, order=order, ut=ut, lt=1)
    alive, lease, time = {}, 0, 0.0
    calls, slots, delivered = [], [], []
    room = ut

    def see(told):
        nonlocal room  # what was sent under an earlier credit is still out
        room = max(room, machine.schedule.room(machine.level()))
        for told_now in told:
            if isinstance(told_now, Send):
                calls.append((told_now.part, told_now.teacher, told_now.lease))
            elif isinstance(told_now, Deliver):
                slots.append(sizes[told_now.batch])
                delivered.append((told_now.epoch, told_now.batch))
        assert machine.unused + machine.ledger.samples <= max(
            ut, machine.supply.credit, room
        )
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
            see(machine.on_tick(time))
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


# Answers that are computed twice


def checked(teachers=3, share=1.0):
    """Every answer is checked, and nothing was answered yet."""
    machine = reader(epochs=100, check_share=share, per_teacher=9)
    given = [teacher(name, lease) for lease, name in enumerate("abc"[:teachers], 1)]
    return machine, machine.on_teachers(given, {}, True, 0.0)


def test_an_answer_is_compared_with_that_of_another_teacher():
    machine, told = checked()
    sent = only(Send, told)[0]
    told = machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
    (check,) = only(Check, told)
    assert check.part == sent.part
    assert check.teacher != sent.teacher
    assert check.first == (sent.teacher, sent.lease)
    agrees = [check.first, (check.teacher, check.lease)]
    told = machine.on_compared(check.part, check.teacher, check.lease, agrees, 0.2)
    assert only(EndCheck, told) == [EndCheck(check.part)]
    assert machine.check.checked == 1
    assert not only(Complain, told)


def test_the_share_says_how_many_are_checked():
    machine, told = checked(share=0.25)
    pending, checks = only(Send, told), 0
    for _ in range(12):
        sent = pending.pop(0)
        told = machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
        for delivered in only(Deliver, told):
            told = [*told, *machine.on_slot_free(SIZES[delivered.batch], 0.1)]
        checks += len(only(Check, told))
        pending += only(Send, told)
    assert checks == 3


def lie(teachers, liar_is_first):
    """One part is answered twice, and the answers differ; the machine and what it said."""
    machine, told = checked(teachers)
    sent = only(Send, told)[0]
    told = machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
    (check,) = only(Check, told)
    second = (check.teacher, check.lease)
    told = machine.on_compared(sent.part, *second, [second], 0.2)
    wrong, right = (check.first, second) if liar_is_first else (second, check.first)
    return machine, sent.part, wrong, right, told


@pytest.mark.parametrize("liar_is_first", [True, False])
def test_a_third_teacher_decides_and_the_liar_goes(liar_is_first):
    machine, part, wrong, right, told = lie(3, liar_is_first)
    (judge,) = only(Check, told)
    assert judge.teacher not in (wrong[0], right[0])
    told = machine.on_compared(part, judge.teacher, judge.lease, [right], 0.3)
    (complaint,) = only(Complain, told)
    assert (complaint.teacher, complaint.lease) == wrong
    assert wrong[0] not in machine.teachers
    (event,) = [i.event for i in only(Say, told) if i.event.KIND == "teacher_lied"]
    assert event["teacher"] == wrong[0].upper()


@pytest.mark.parametrize("liar_is_first", [True, False])
def test_of_two_the_one_that_contradicts_itself_goes(liar_is_first):
    machine, part, wrong, right, told = lie(2, liar_is_first)
    while asked := only(Check, told):
        (again,) = asked
        who = (again.teacher, again.lease)
        told = machine.on_compared(part, *who, [right], 0.3)  # the liar says the truth now
    (complaint,) = only(Complain, told)
    assert (complaint.teacher, complaint.lease) == wrong


def test_what_a_liar_said_is_asked_again_unless_it_was_trained_on():
    machine = reader(epochs=100, slots=2, ut=64, per_teacher=9, check_share=0.0)
    told = machine.on_teachers(
        [teacher("a", 1), teacher("b", 2), teacher("c", 3)], {}, True, 0.0
    )
    answered = only(Send, told)
    for sent in answered:
        machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
    used = machine.provenance.trained[Witness("a", 1)].samples  # in the trainer's slots
    lied = sum(s.part.size for s in answered if s.teacher == "a")
    unused = machine.unused
    machine.check.open(answered[0].part, Witness("a", 1), Witness("b", 2))
    told = machine.on_compared(answered[0].part, "b", 2, [("b", 2)], 0.2)
    told = machine.on_compared(answered[0].part, "c", 3, [("b", 2)], 0.3)
    (event,) = [i.event for i in only(Say, told) if i.event.KIND == "teacher_lied"]
    assert event["sent_again"] == lied - used > 0
    assert event["trained"] == used > 0
    assert machine.unused == unused - event["sent_again"]
    again = [s for s in only(Send, told) if s.part in {a.part for a in answered}]
    assert sum(s.part.size for s in again) == event["sent_again"]
    assert {s.teacher for s in again} <= {"b", "c"}


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_with_a_liar_every_batch_still_comes_once(seed, teachers):
    chance = random.Random(seed)
    machine = reader(epochs=4, sizes=[4, 3, 5], check_share=0.5, ut=40)
    given = [teacher(f"t{i}", i, best_batch=2) for i in range(teachers)]
    told, delivered, time = machine.on_teachers(given, {}, True, 0.0), [], 0.0
    calls, truth = [], {}
    while len(delivered) < 12:
        time += 0.1
        assert time < 500, "it does not come to an end"
        for now in told:
            if isinstance(now, Deliver):
                delivered.append((now.epoch, now.batch))
            elif isinstance(now, Send | Check):
                calls.append(now)
            elif isinstance(now, EndCheck):
                truth.pop(now.part, None)
        freed = [machine.sizes(0)[i.batch] for i in told if isinstance(i, Deliver)]
        told = list(machine.on_tick(time))
        for size in freed:
            told += machine.on_slot_free(size, time)
        if calls:
            call = calls.pop(chance.randrange(len(calls)))
            said_now = "lie" if call.teacher == "t0" and chance.random() < 0.5 else "truth"
            if isinstance(call, Send):
                before = set(machine.check.cases)
                told += machine.on_answer(call.part, call.teacher, call.lease, time)
                if set(machine.check.cases) - before:
                    truth[call.part] = {(call.teacher, call.lease): said_now}
            else:
                kept = truth.get(call.part, {})
                kept.setdefault((call.teacher, call.lease), said_now)
                agrees = [who for who, what in kept.items() if what == said_now]
                told += machine.on_compared(
                    call.part, call.teacher, call.lease, agrees, time
                )
    assert sorted(delivered) == [(e, b) for e in range(4) for b in range(3)]
