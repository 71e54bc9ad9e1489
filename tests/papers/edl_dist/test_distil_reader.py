"""The reader's decisions: exactly once, bounded volume, order, hedges, waiting."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from kdlab.papers.edl_dist.beyond.trust import Witness
from kdlab.papers.edl_dist.distil_reader import DistilReader
from kdlab.papers.edl_dist.reader_instructions import (
    AskTeacher,
    Check,
    Deliver,
    EmitEvent,
    EndCheck,
    Fail,
    Keep,
    Need,
    Release,
    ReportBadTeacher,
    ReturnTeacher,
    Send,
    TakeCached,
)
from kdlab.papers.edl_dist.reader_rules import Rules, Teacher
from kdlab.papers.edl_dist.teacher_info import TeacherInfo

SIZES = [4, 4, 4, 2]


def reader(epochs=3, sizes=SIZES, start=(0, ()), cached=lambda e, b: False, **rules):
    all_rules = {"t_s": 10.0, "lt": 4, "ut": 16, "slots": 2} | rules
    machine = DistilReader(
        Rules(**all_rules),
        lambda epoch: sizes,
        epochs=epochs,
        epoch=start[0],
        done=start[1],
        cached=cached,
    )
    machine.on_announced()
    return machine


def teacher(name, lease=1, t_t=10.0, best_batch=64, draining=False):
    return Teacher(name, lease, t_t, best_batch, draining, TeacherInfo(name=name.upper()))


def only(kind, instructions):
    return [i for i in instructions if isinstance(i, kind)]


def event_kinds(instructions):
    return [i.event.KIND for i in only(EmitEvent, instructions)]


def events_of(kind, instructions):
    return [i.event for i in only(EmitEvent, instructions) if kind == i.event.KIND]


def test_batches_are_cut_to_what_a_teacher_computes_best_and_put_together():
    machine = reader(per_teacher=4)
    instructions = machine.on_teachers([teacher("t", best_batch=3)], {}, True, 0.0)
    parts = [s.part for s in only(Send, instructions)]
    assert [(p.batch, p.start, p.stop) for p in parts[:2]] == [(0, 0, 3), (0, 3, 4)]
    instructions = machine.on_answer(parts[1], "t", 1, 1.0)
    assert only(Keep, instructions)
    assert not only(Deliver, instructions)
    assert only(Deliver, machine.on_answer(parts[0], "t", 1, 1.0)) == [Deliver(0, 0)]


def test_strict_waits_for_the_plans_next_batch_and_any_does_not():
    for order, first in (("strict", []), ("any", [Deliver(0, 1)])):
        machine = reader(order=order)
        sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
        instructions = machine.on_answer(sent[1].part, "t", 1, 1.0)
        assert only(Deliver, instructions) == first


def test_two_teachers_requests_are_in_flight_with_each():
    machine = reader()
    instructions = machine.on_teachers([teacher("t"), teacher("u")], {}, True, 0.0)
    assert sorted(s.teacher for s in only(Send, instructions)) == ["t", "t", "u", "u"]


def test_an_expired_teachers_work_goes_to_another_at_once():
    machine = reader()
    machine.on_teachers([teacher("t")], {}, True, 0.0)
    instructions = machine.on_teachers([teacher("u", 2)], {"t": "expired"}, False, 5.0)
    assert [s.teacher for s in only(Send, instructions)] == ["u", "u"]
    (lost,) = events_of("teacher_lost", instructions)
    assert lost.why == "silent beyond its lease"
    assert lost.resent == 2
    assert lost.teacher == "T"


@pytest.mark.parametrize("how", ["left", "moved", "released"])
def test_a_teacher_that_goes_gracefully_still_answers(how):
    machine = reader()
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    instructions = machine.on_teachers([teacher("u", 2)], {"t": how}, False, 1.0)
    assert machine.ledger.resends == 0
    (left,) = events_of("teacher_left", instructions)
    words = {"left": "left gracefully", "moved": "serves another", "released": "no longer"}
    assert words[how] in left.text()
    assert only(Keep, machine.on_answer(sent[0].part, "t", 1, 2.0))


def test_a_draining_teacher_gets_no_more():
    machine = reader()
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    instructions = machine.on_teachers([teacher("t", draining=True)], {}, False, 1.0)
    assert event_kinds(instructions) == ["teacher_left"]
    instructions = machine.on_answer(sent[0].part, "t", 1, 2.0)
    assert only(Keep, instructions)
    assert not only(Send, instructions)


def test_a_lease_given_up_on_is_not_taken_back_but_a_new_one_is():
    machine = reader()
    machine.on_teachers([teacher("t", 1)], {}, True, 0.0)
    instructions = machine.on_trouble("t", 1, "no answer", unusable=False, time=1.0)
    assert only(ReturnTeacher, instructions) == [ReturnTeacher("t", 1, 1.0)]
    assert not only(Send, machine.on_teachers([teacher("t", 1)], {}, True, 2.0))
    assert only(Send, machine.on_teachers([teacher("t", 2)], {}, True, 3.0))
    instructions = machine.on_trouble("t", 2, "no answer", unusable=False, time=4.0)
    # The back-off doubles.
    assert only(ReturnTeacher, instructions) == [ReturnTeacher("t", 2, 2.0)]


def test_an_unusable_answer_is_complained_about_and_sent_elsewhere():
    machine = reader()
    machine.on_teachers([teacher("t"), teacher("u", 2)], {}, True, 0.0)
    instructions = machine.on_trouble("t", 1, "NaN", unusable=True, time=1.0)
    assert only(ReportBadTeacher, instructions) == [ReportBadTeacher("t", 1, "NaN")]
    assert machine.ledger.resends == 2


def test_an_overdue_part_is_asked_of_a_second_teacher_once():
    machine = reader(per_teacher=3)
    teachers = [teacher("slow"), teacher("quick", 2)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    hung = next(s.part for s in only(Send, instructions) if s.teacher == "slow")
    for sent in only(Send, instructions):
        if sent.teacher == "quick":
            machine.on_answer(sent.part, "quick", 2, 0.1)
    instructions = machine.on_tick(6.0)
    assert Send(hung, "quick", 2) in instructions
    assert Send(hung, "quick", 2) not in machine.on_tick(7.0)
    assert only(Keep, machine.on_answer(hung, "quick", 2, 8.0)) == [Keep(hung)]
    assert not only(Keep, machine.on_answer(hung, "slow", 1, 9.0))


def test_without_an_answer_for_long_the_teacher_is_given_up():
    machine = reader(deadline_s=30.0)
    machine.on_teachers([teacher("t")], {}, True, 0.0)
    assert not only(ReturnTeacher, machine.on_tick(29.0))
    instructions = machine.on_tick(30.5)
    assert only(ReturnTeacher, instructions)
    assert "all_teachers_lost" in event_kinds(instructions)


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


def train_slowly(machine, instructions, rate, until, begin=0.0, size=4):
    """Answer at once and train `rate` samples/s; return all instructions."""
    issued, due, time = list(instructions), begin, begin
    while time < until:
        time += 0.05
        new = list(machine.on_tick(time))
        pending = [i for i in (*instructions, *new) if isinstance(i, Send)]
        instructions = []
        for sent in pending:
            answer = machine.on_answer(sent.part, sent.teacher, sent.lease, time)
            issued += answer
            instructions += answer
        if machine.slots_taken and time >= due:
            due += size / rate
            freed = machine.on_slot_free(size, time)
            issued += freed
            instructions += freed
        issued += new
    return issued


def test_a_slow_student_keeps_as_few_teachers_as_it_needs_and_none_that_is_too_quick():
    """Once only the slowest went: a student of 4/s held 20/s, and 1.3 to 1.5 of its need."""
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    teachers = [
        teacher("quick", 1, 20.0),
        teacher("slow", 2, 5.0),
        teacher("slower", 3, 1.0),
    ]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    released = only(Release, served(machine, instructions, 40.0, 4.0))
    assert [r.teacher for r in released] == ["slower", "quick"]
    assert released[-1].need == pytest.approx(1.05 * 4.0, rel=0.1)


def test_a_student_that_needs_all_its_teachers_keeps_them():
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    teachers = [teacher("quick", 1, 20.0), teacher("slow", 2, 5.0)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    assert not only(Release, served(machine, instructions, 40.0, 19.0))


def served(machine, instructions, until, pace, *, times=lambda t: {}, way_s=0.0, news=()):
    """Simulate teachers that compute one part after the other; return all instructions.

    The student trains `pace` samples/s. `times`: how many times as long a teacher takes at a
    time, by name. `news`: (time, teachers that join, teachers that are gone), in order.
    """
    issued, under_way, free_at, time = list(instructions), [], Counter(), 0.0
    news = deque(news)
    ready, ends_at, sizes = deque(), None, machine.sizes(0)
    while time < until:
        for call in instructions:
            if isinstance(call, Deliver):
                ready.append(sizes[call.batch])
            elif isinstance(call, Send) and call.teacher in machine.teachers:
                rate = machine.teachers[call.teacher].t_t
                takes = call.part.size / rate * times(time).get(call.teacher, 1.0)
                there = max(time + way_s / 2, free_at[call.teacher])
                free_at[call.teacher] = there + takes
                under_way.append((free_at[call.teacher] + way_s / 2, call))
        if ends_at is None and ready:
            ends_at = time + ready[0] / pace
        tick = time + 0.05
        time = min(
            [tick, *([ends_at] if ends_at is not None else []), *(u[0] for u in under_way)]
        )
        instructions = []
        if time == ends_at:
            instructions += machine.on_slot_free(ready.popleft(), time)
            ends_at = None
        for due, call in [u for u in under_way if u[0] <= time]:
            under_way.remove((due, call))
            instructions += machine.on_answer(call.part, call.teacher, call.lease, time)
        instructions += machine.on_tick(time)
        while news and news[0][0] <= time:
            instructions += machine.on_teachers(*news.popleft()[1:], False, time)
        issued += instructions
    return issued


def test_a_starving_student_never_releases_and_asks_for_what_it_needs():
    """The defect B2: unused 0, much in flight, and a teacher released after 13 s."""
    machine = reader(epochs=10**6, sizes=[4] * 50, lt=256, ut=2048, t_s=2500.0)
    teachers = [teacher(f"t{i}", i, 38.0) for i in range(5)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    issued = served(machine, instructions, 30.0, 2500.0)
    assert not only(Release, issued)
    (asked,) = only(AskTeacher, issued)
    assert asked.need == pytest.approx(1.05 * 2500.0, rel=0.1)


def test_thresholds_that_starve_a_student_are_named_with_what_would_do():
    """Strict order: what came too early fills the store while one part is awaited."""
    machine = reader(
        epochs=100, sizes=[4] * 50, order="strict", lt=4, ut=12, hedge=False, per_teacher=9
    )
    teachers = [teacher("t", t_t=100.0), teacher("u", 2, t_t=100.0)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    first = next(s for s in only(Send, instructions) if s.part.batch == 0)
    for lap in range(3):  # the first batch of each lap comes late
        sent = only(Send, instructions)
        for s in sent:
            if s != first:
                answer = machine.on_answer(s.part, s.teacher, s.lease, 0.1 + lap)
                instructions = [*instructions, *answer]
    issued = []
    for tick in range(32, 250):
        issued += machine.on_tick(tick / 10)
    (limit,) = events_of("threshold_limits", issued)
    assert limit.ut == 12
    assert limit.enough >= 24


def test_others_that_come_and_go_do_not_reset_what_was_learned():
    machine = reader(epochs=100, window_s=10.0, settle_s=1.0)
    teachers = [teacher("quick", 1, 20.0), teacher("slow", 2, 5.0)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    news = []
    for number in range(30):  # one comes and goes each second
        news.append((number, [teacher(f"spot{number}", 10 + number, 1.0)], {}))
        news.append((number + 0.9, [], {f"spot{number}": "lost"}))
    released = only(Release, served(machine, instructions, 30.0, 4.0, news=news))
    assert len(released) >= 2


def samples_sent(issued):
    asked = Counter()
    for sent in only(Send, issued):
        asked[sent.teacher] += sent.part.size
    return asked


def test_a_teacher_ten_times_slower_is_asked_as_much_less():
    """It says 100 samples/s, and does 10."""
    machine = reader(epochs=10**6, sizes=[16] * 50, lt=256, ut=2048, t_s=300.0)
    teachers = [teacher("quick", 1, 100.0), teacher("slow", 2, 100.0)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    slow = served(machine, instructions, 60.0, 300.0, times=lambda time: {"slow": 10.0})
    asked = samples_sent(slow)
    assert asked["slow"] <= 0.15 * asked["quick"]
    assert machine.flow.supply.capacity == pytest.approx(110.0, rel=0.1)


def test_late_answers_say_that_a_teacher_has_become_slow():
    """Others answered its parts in time, and its own late answers once taught nothing."""

    def slow(time):
        return {"a": 10.0} if 20 < time < 60 else {}

    def until(seconds):
        rules = {"lt": 256, "ut": 2048, "t_s": 150.0, "order": "strict", "slots": 8}
        machine = reader(epochs=10**6, sizes=[16] * 50, **rules)
        teachers = [teacher(name, number, 100.0) for number, name in enumerate("abcd")]
        instructions = machine.on_teachers(teachers, {}, True, 0.0)
        served(machine, instructions, seconds, 150.0, times=slow)
        return machine

    machine = until(40.0)
    assert machine.ledger.hedges
    assert machine.ledger.teachers["a"].rate < 20.0
    # 20 s of ten times slower cost less than a part.
    assert machine.flow.supply.starved.waited_s < 3.0
    assert until(90.0).ledger.teachers["a"].rate > 50.0  # and it is believed again


def test_a_long_way_takes_nothing_of_a_teachers_rate():
    """Answers take a second on the way; that once lowered the measured rate again and again."""
    machine = reader(epochs=10**6, sizes=[64] * 50, lt=512, ut=4096, t_s=150.0)
    teachers = [teacher("a", 1, 100.0), teacher("b", 2, 100.0)]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    served(machine, instructions, 60.0, 150.0, way_s=1.0)
    assert machine.flow.supply.capacity == pytest.approx(200.0, rel=0.1)
    assert machine.ledger.teachers["a"].way_s == pytest.approx(1.0, rel=0.1)
    assert machine.flow.supply.pace.trained > 0.9 * 150.0 * 58.0


def test_known_labels_need_no_teacher():
    machine = reader(cached=lambda epoch, batch: (epoch, batch) != (0, 2), slots=4, ut=40)
    instructions = machine.on_tick(0.0)
    assert [i.part.batch for i in only(TakeCached, instructions)] == [0, 1]
    assert only(Deliver, instructions) == [Deliver(0, 0), Deliver(0, 1)]
    (sent,) = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.1))
    assert sent.part.batch == 2


@pytest.mark.parametrize("order", ["any", "strict"])
def test_batches_that_are_trained_on_are_forgotten(order):
    """In a strict run with a cache, the measure of latency once held each cached batch for ever."""
    machine = reader(epochs=1000, order=order, cached=lambda e, b: b != 1)
    instructions = list(machine.on_teachers([teacher("a")], {}, True, 0.0))
    delivered = 0
    while delivered < 1000:
        instructions += machine.on_tick(0.0)
        for now in tuple(instructions):
            instructions.remove(now)
            if isinstance(now, Send):
                instructions += machine.on_answer(now.part, now.teacher, now.lease, 0.0)
            elif isinstance(now, Deliver):
                delivered += 1
                instructions += machine.on_slot_free(SIZES[now.batch], 0.0)
    batches = machine.batches
    stores = [batches.missing, batches.open, batches._before, batches._ends, batches._ready]
    assert sum(map(len, [*stores, machine.trust.answers, machine.ledger.sent])) < 30


def test_what_is_asked_for_already_is_not_asked_again_for_the_next_epoch():
    """Labels are kept: epoch 1 sees the views of epoch 0, whose answers are under way."""
    known = set()
    machine = reader(
        cached=lambda epoch, batch: batch in known, cache_views=1, ut=100, per_teacher=99
    )
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert {s.part.epoch for s in sent} == {0}
    instructions = []
    for request in sent:
        known.add(request.part.batch)
        instructions += machine.on_answer(request.part, "t", 1, 0.1)
    assert not only(Send, instructions)
    taken = [(i.part.epoch, i.part.batch) for i in only(TakeCached, instructions)]
    assert taken[:4] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_thresholds_that_are_set_bind_at_once():
    machine = reader(per_teacher=99)
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert sum(s.part.size for s in sent) == 14  # whole batches, up to ut
    assert machine.flow.supply.credit == 0  # no latency is known yet
    more = only(Send, machine.on_thresholds(8, 24, 0.1))
    assert sum(s.part.size for s in more) == 8
    machine.on_thresholds(1, 5, 0.2)
    for s in sent[:3]:
        machine.on_answer(s.part, "t", 1, 0.3)
        instructions = machine.on_slot_free(s.part.size, 0.4)
        assert not only(Send, instructions)  # 10 samples are still out, more than ut


def test_a_pause_gives_no_teacher_away():
    def released(paused):
        machine = reader(epochs=100, t_s=1.0, settle_s=1.0, window_s=2.0)
        teachers = [teacher("t"), teacher("slow", 2, t_t=5.0)]
        train_slowly(machine, machine.on_teachers(teachers, {}, True, 0.0), 4.0, 2.5)
        if paused:
            machine.on_paused(True, 2.5)
        return only(Release, train_slowly(machine, [], 4.0, 30.0, begin=2.5))

    assert released(paused=False)
    assert not released(paused=True)


def test_a_resume_skips_what_was_done():
    machine = reader(start=(1, (0, 2)))
    sent = only(Send, machine.on_teachers([teacher("t")], {}, True, 0.0))
    assert [(s.part.epoch, s.part.batch) for s in sent] == [(1, 1), (1, 3), (2, 0)]
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
        instructions = machine.on_answer(sent[0].part, "t", lease, time)
        for _ in only(Deliver, instructions):
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

    def see(instructions):
        nonlocal room  # what was sent under an earlier credit is still out
        room = max(room, machine.flow.schedule.room(machine.flow.level()))
        for instruction in instructions:
            if isinstance(instruction, Send):
                calls.append((instruction.part, instruction.teacher, instruction.lease))
            elif isinstance(instruction, Deliver):
                slots.append(sizes[instruction.batch])
                delivered.append((instruction.epoch, instruction.batch))
        assert machine.flow.unused + machine.ledger.samples <= max(
            ut, machine.flow.supply.credit, room
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
    pool = [teacher(name, lease) for lease, name in enumerate("abc"[:teachers], 1)]
    return machine, machine.on_teachers(pool, {}, True, 0.0)


def test_an_answer_is_compared_with_that_of_another_teacher():
    machine, instructions = checked()
    sent = only(Send, instructions)[0]
    instructions = machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
    (check,) = only(Check, instructions)
    assert check.part == sent.part
    assert check.teacher != sent.teacher
    assert check.first == (sent.teacher, sent.lease)
    agrees = [check.first, (check.teacher, check.lease)]
    instructions = machine.on_compared(check.part, check.teacher, check.lease, agrees, 0.2)
    assert only(EndCheck, instructions) == [EndCheck(check.part)]
    assert machine.trust.checked == 1
    assert not only(ReportBadTeacher, instructions)


def test_the_share_says_how_many_are_checked():
    machine, instructions = checked(share=0.25)
    pending, checks = only(Send, instructions), 0
    for _ in range(12):
        sent = pending.pop(0)
        instructions = machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
        for delivered in only(Deliver, instructions):
            freed = machine.on_slot_free(SIZES[delivered.batch], 0.1)
            instructions = [*instructions, *freed]
        checks += len(only(Check, instructions))
        pending += only(Send, instructions)
    assert checks == 3


def lie(teachers, liar_is_first):
    """Answer a part twice, differently; return (machine, part, wrong, right, instructions)."""
    machine, instructions = checked(teachers)
    sent = only(Send, instructions)[0]
    instructions = machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
    (check,) = only(Check, instructions)
    second = (check.teacher, check.lease)
    instructions = machine.on_compared(sent.part, *second, [second], 0.2)
    wrong, right = (check.first, second) if liar_is_first else (second, check.first)
    return machine, sent.part, wrong, right, instructions


@pytest.mark.parametrize("liar_is_first", [True, False])
def test_a_third_teacher_decides_and_the_liar_goes(liar_is_first):
    machine, part, wrong, right, instructions = lie(3, liar_is_first)
    (judge,) = only(Check, instructions)
    assert judge.teacher not in (wrong[0], right[0])
    instructions = machine.on_compared(part, judge.teacher, judge.lease, [right], 0.3)
    (complaint,) = only(ReportBadTeacher, instructions)
    assert (complaint.teacher, complaint.lease) == wrong
    assert wrong[0] not in machine.teachers
    (event,) = events_of("labels_disagree", instructions)
    assert event.teacher == wrong[0].upper()


@pytest.mark.parametrize("liar_is_first", [True, False])
def test_of_two_the_one_that_contradicts_itself_goes(liar_is_first):
    machine, part, wrong, right, instructions = lie(2, liar_is_first)
    while asked := only(Check, instructions):
        (again,) = asked
        who = (again.teacher, again.lease)
        instructions = machine.on_compared(part, *who, [right], 0.3)  # no lie this time
    (complaint,) = only(ReportBadTeacher, instructions)
    assert (complaint.teacher, complaint.lease) == wrong


def test_what_a_liar_said_is_asked_again_unless_it_was_trained_on():
    machine = reader(epochs=100, slots=2, ut=64, per_teacher=9, check_share=0.0)
    instructions = machine.on_teachers(
        [teacher("a", 1), teacher("b", 2), teacher("c", 3)], {}, True, 0.0
    )
    answered = only(Send, instructions)
    for sent in answered:
        machine.on_answer(sent.part, sent.teacher, sent.lease, 0.1)
    used = machine.trust.trained[Witness("a", 1)].samples  # in the trainer's slots
    lied = sum(s.part.size for s in answered if s.teacher == "a")
    unused = machine.flow.unused
    machine.trust.open_case(answered[0].part, Witness("a", 1), Witness("b", 2))
    instructions = machine.on_compared(answered[0].part, "b", 2, [("b", 2)], 0.2)
    instructions = machine.on_compared(answered[0].part, "c", 3, [("b", 2)], 0.3)
    (event,) = events_of("labels_disagree", instructions)
    assert event.sent_again == lied - used > 0
    assert event.trained == used > 0
    assert machine.flow.unused == unused - event.sent_again
    again = [s for s in only(Send, instructions) if s.part in {a.part for a in answered}]
    assert sum(s.part.size for s in again) == event.sent_again
    assert {s.teacher for s in again} <= {"b", "c"}


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_with_a_liar_every_batch_still_comes_once(seed, teachers):
    chance = random.Random(seed)
    machine = reader(epochs=4, sizes=[4, 3, 5], check_share=0.5, ut=40)
    pool = [teacher(f"t{i}", i, best_batch=2) for i in range(teachers)]
    instructions, delivered, time = machine.on_teachers(pool, {}, True, 0.0), [], 0.0
    calls, truth = [], {}
    while len(delivered) < 12:
        time += 0.1
        assert time < 500, "it does not come to an end"
        for now in instructions:
            if isinstance(now, Deliver):
                delivered.append((now.epoch, now.batch))
            elif isinstance(now, Send | Check):
                calls.append(now)
            elif isinstance(now, EndCheck):
                truth.pop(now.part, None)
        freed = [machine.sizes(0)[i.batch] for i in instructions if isinstance(i, Deliver)]
        instructions = list(machine.on_tick(time))
        for size in freed:
            instructions += machine.on_slot_free(size, time)
        if calls:
            call = calls.pop(chance.randrange(len(calls)))
            answer = "lie" if call.teacher == "t0" and chance.random() < 0.5 else "truth"
            if isinstance(call, Send):
                before = set(machine.trust.cases)
                instructions += machine.on_answer(call.part, call.teacher, call.lease, time)
                if set(machine.trust.cases) - before:
                    truth[call.part] = {(call.teacher, call.lease): answer}
            else:
                answers = truth.get(call.part, {})
                answers.setdefault((call.teacher, call.lease), answer)
                agrees = [who for who, what in answers.items() if what == answer]
                instructions += machine.on_compared(
                    call.part, call.teacher, call.lease, agrees, time
                )
    assert sorted(delivered) == [(e, b) for e in range(4) for b in range(3)]


@pytest.mark.parametrize("how", ["lost", "left", "released"])
def test_teachers_that_come_and_go_for_weeks_leave_nothing_behind(how):
    """Facts about each once stayed: leases given up on, latencies, samples trained on."""
    machine = reader(epochs=10**6, sizes=[4] * 50, check_share=0.05, ut=64)
    instructions = list(machine.on_teachers([teacher("stays", 1, 100.0)], {}, True, 0.0))
    for number in range(400):
        name, lease, time = f"spot{number}", number + 2, float(number)
        instructions += machine.on_teachers([teacher(name, lease, 100.0)], {}, False, time)
        for round_ in range(6):
            calls, instructions = instructions, []
            for call in calls:
                if isinstance(call, Send) and call.teacher in machine.teachers:
                    instructions += machine.on_answer(
                        call.part, call.teacher, call.lease, time + 0.1
                    )
                elif isinstance(call, Check) and call.teacher in machine.teachers:
                    agrees = [call.first] if call.first else []
                    instructions += machine.on_compared(
                        call.part, call.teacher, call.lease, agrees, time + 0.1
                    )
                elif isinstance(call, Deliver):
                    instructions += machine.on_slot_free(4, time + 0.1)
            instructions += machine.on_tick(time + 0.1 + round_ / 100)
        if number % 3 == 0:
            instructions += machine.on_trouble(
                name, lease, "broke", unusable=False, time=time + 0.2
            )
        instructions += machine.on_teachers([], {name: how}, False, time + 0.3)
    stores = (
        *(
            machine.roster.unusable,
            machine.roster.releasing,
            machine.teachers,
            machine.trust.cases,
        ),
        *(
            machine.roster.patience.seen,
            machine.roster.patience.failures,
            machine.trust.trained,
        ),
        *(machine.trust.answers, machine.hedging.hedged, machine.ledger.superseded),
        *(machine.ledger.sent, machine.ledger.owed, machine.ledger.waiting),
    )
    assert machine.batches_delivered > 1000
    assert max(map(len, stores)) < 100


def test_on_a_link_that_is_full_few_are_asked_of_a_second_teacher():
    """Then all answers are late, and each second request makes them later."""
    machine = reader(epochs=10**6, sizes=[16] * 50, lt=256, ut=2048, t_s=300.0)
    teachers = [teacher(name, number, 100.0) for number, name in enumerate("abcd")]
    instructions = machine.on_teachers(teachers, {}, True, 0.0)
    answered = 0
    for second in range(1, 120):  # 16 samples a second come back, whoever computes them
        sent = [call for call in instructions if isinstance(call, Send)]
        instructions = [call for call in instructions if call not in sent[:1]]
        for call in sent[:1]:
            now = float(second)
            instructions += machine.on_answer(call.part, call.teacher, call.lease, now)
            answered += 1
        for call in [call for call in instructions if isinstance(call, Deliver)]:
            instructions.remove(call)
            instructions += machine.on_slot_free(16, float(second))
        for tick in range(4):
            instructions += machine.on_tick(second + tick / 4)
        instructions = [call for call in instructions if isinstance(call, Send | Deliver)]
    assert answered > 50
    assert machine.ledger.hedges <= 8 + 0.1 * answered


def shared(name, part, t_t=40.0):
    """A teacher of which the student has a share; `t_t` is the rate of the whole teacher."""
    info = TeacherInfo(name=name.upper())
    return Teacher(name, 1, part * t_t, 64, info=info, share=part)


def simulate(machine, teachers, seconds, pace, served=40.0):
    """Simulate teachers of `served` samples/s, a student of `pace`; return all instructions."""
    instructions, everything = machine.on_teachers(teachers, {}, True, 0.0), []
    free_at, due, trains_until = Counter(), [], 0.0
    for tick in range(1, int(100 * seconds)):
        now = tick / 100
        everything += instructions
        for i in only(Send, instructions):
            free_at[i.teacher] = max(now, free_at[i.teacher]) + i.part.size / served
            due.append((free_at[i.teacher], i))
        instructions = machine.on_tick(now)
        for at, i in [d for d in due if d[0] <= now]:
            due.remove((at, i))
            instructions += machine.on_answer(i.part, i.teacher, i.lease, now)
        if machine.slots_taken and now >= trains_until:
            trains_until = now + 4 / pace
            instructions += machine.on_slot_free(4, now)
    return everything


def test_of_a_shared_teacher_no_more_is_asked_than_the_share():
    """With a third of a teacher it once took four fifths: a teacher answers whoever asks most."""
    machine = reader(epochs=100, sizes=[4] * 100, t_s=100.0, ut=400, lt=40)
    teachers = [shared("t", 0.25), teacher("u", t_t=40.0)]
    asked = Counter()
    for i in only(Send, simulate(machine, teachers, 20.0, pace=100.0)):
        asked[i.teacher] += i.part.size
    assert asked["t"] == pytest.approx(0.25 * 40.0 * 20.0, rel=0.1)
    assert asked["u"] == pytest.approx(40.0 * 20.0, rel=0.1)


def test_a_share_that_grows_is_used_at_once():
    machine = reader(epochs=100, t_s=100.0, ut=400, lt=40)
    machine.on_teachers([shared("t", 0.05)], {}, True, 0.0)
    instructions = machine.on_teachers([shared("t", 1.0)], {}, False, 0.1)
    assert only(Send, instructions)  # it need not wait for two seconds of the share before
    assert "teacher_joined" not in event_kinds(instructions)


def test_what_a_student_needs_less_than_it_said_is_told_once():
    """Measured at twice its pace, it held teachers that somebody else starved for."""
    teachers = [teacher("t", t_t=400.0)]

    def needs_at(pace):
        machine = reader(epochs=100, sizes=[4] * 100, t_s=100.0, ut=400, lt=40)
        return only(Need, simulate(machine, teachers, 15.0, pace, served=400.0))

    (need,) = needs_at(pace=50.0)
    assert need.need == pytest.approx(1.05 * 50.0, rel=0.1)
    assert needs_at(pace=100.0) == []


def test_a_need_that_did_not_arrive_is_told_again_once_the_coordinator_answers():
    machine = reader(epochs=100, sizes=[4] * 100, t_s=100.0, ut=400, lt=40)
    simulate(machine, [teacher("t", t_t=400.0)], 15.0, pace=50.0, served=400.0)
    machine.on_need_failed()
    assert only(Need, machine.on_tick(15.0)) == []
    machine.on_announced()
    assert len(only(Need, machine.on_tick(15.01))) == 1
