"""A whole served student in one process: what it is given, and what faults cost it."""

import json
import re
import time
from dataclasses import replace

import psutil
import pytest
import torch
from tests_support import trained_ids, until

from kdlab.cluster.child_configs import EmulatedTeachersConfig
from kdlab.errors import BadInput, ClusterError, NoTeacherLeft, RunStopped
from kdlab.report.bottleneck import of_result
from kdlab.soft_labels.cached import Cached
from kdlab.soft_labels.source import SourceContext
from kdlab.testing import check_source, replay

# (epoch, batch) of what a recorded reader sends.
SENT = r'"kind": "Send", "part": \[(\d+), (\d+)'

pytestmark = pytest.mark.long  # whole pools


def train(source, epochs, act=lambda epoch, number: None):
    ids = []
    for epoch in range(epochs):
        for number, batch in enumerate(source.epoch(epoch, ())):
            ids.append((epoch, batch.ids.copy()))
            act(epoch, number)
    return ids


def complete(ids, samples, epochs):
    for epoch in range(epochs):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())


def select(events, kind):
    return [event for name, event in events if name == kind]


def counted(source):
    """Return what the reader has counted until now; the ring shows it after up to 0.05 s."""
    return source.reader._child.reader.figures()


def states(pool):
    return [t.state for t in pool.status().teachers]


# What is given


@pytest.mark.parametrize(
    ("inputs", "replies", "order"),
    [
        ("reference", "full", "any"),
        ("reference", "top_k", "strict"),
        ("value_uint8", "half", "strict"),
        ("value_float32", "full", "any"),
    ],
)
def test_every_form_conforms_and_is_the_teachers_own(
    pool_here, served, teacher, digits, inputs, replies, order
):
    pool = pool_here(teachers=1)
    how = {"inputs": inputs, "replies": replies, "order": order, "top_k": 9}

    def make(start):
        return served(pool, start=start, **how)[0]

    _, samples, _ = served(pool, **how)
    check_source(make, samples, epochs=3)
    loaded = teacher.load(digits[0], "cpu")
    for batch in make({"epoch": 2, "done": []}).epoch(2, ()):
        right, close = loaded.infer(batch.views), 1e-4 if replies == "full" else 2e-2
        if replies == "top_k":
            right = right.log_softmax(1)
        assert torch.allclose(batch.soft, right, atol=close, rtol=close)


def test_kept_labels_are_asked_for_once_and_become_a_cache(
    pool_here, served, teacher, digits, tmp_path, monkeypatch
):
    monkeypatch.setenv("KDLAB_HOME", str(tmp_path))  # without labels of other tests
    source, samples, _ = served(pool_here(teachers=1), cache_views=1, epochs=4, record=True)
    labels = [{}, {}, {}, {}]
    for epoch in range(4):
        for batch in source.epoch(epoch, ()):
            labels[epoch] |= zip(batch.ids.tolist(), batch.soft.clone(), strict=True)
    source.close()
    asked = set(re.findall(SENT, source.log.with_suffix(".jsonl").read_text()))
    for later in labels[1:]:
        assert all(torch.allclose(labels[0][i], later[i], atol=2e-2) for i in later)
    context = SourceContext(
        samples=samples,
        student="offline",
        folder=source.log.parent,
        load_teacher=lambda: replace(
            teacher.load(digits[0], "cpu"), infer=lambda views: pytest.fail("asked again")
        ),
    )
    for batch in Cached(views=1).build(context).epoch(0, ()):
        for i, soft in zip(batch.ids.tolist(), batch.soft, strict=True):
            assert torch.allclose(soft, labels[0][i], atol=2e-2)
    assert len(samples.batches(0)) <= len(asked) <= 2 * len(samples.batches(0))


def test_large_batches_are_cut_for_the_teachers_and_put_together(
    pool_here, served, teacher, digits
):
    """The deployment's batch is 20; here the student's is 90, cut into five."""
    source, _, _ = served(pool_here(teachers=2), batch=90, ut=400)
    loaded = teacher.load(digits[0], "cpu")
    for batch in source.epoch(0, ()):
        assert torch.allclose(batch.soft, loaded.infer(batch.views), atol=1e-4)


def test_an_ensemble_answers_the_mean_of_its_members(pool_here, served, deployment):
    (member,) = deployment.members
    members = (replace(member, weight=1.0), replace(member, weight=3.0))
    twice = replace(deployment, members=members, teacher="ensemble")
    single, _, _ = served(pool_here(teachers=1), order="strict")
    ensemble, _, _ = served(pool_here(twice, teachers=1), order="strict")
    for expected, batch in zip(single.epoch(0, ()), ensemble.epoch(0, ()), strict=True):
        assert torch.allclose(expected.soft.log_softmax(1), batch.soft, atol=1e-4)


@pytest.mark.parametrize("unit", ["megabytes", "memory_share"])
def test_thresholds_may_be_bytes_or_a_share_of_the_memory(pool_here, served, unit):
    size = 64 + 40  # 1×8×8 pixels and ten float32 logits
    free = psutil.virtual_memory().available
    ut = 100 * size / (1e6 if unit == "megabytes" else free)
    source, _, _ = served(
        pool_here(teachers=2), epochs=2, lt=ut / 5, ut=ut, thresholds_in=unit
    )
    assert 90 <= source.reader.config.rules.ut <= 110
    assert 15 <= source.reader.config.rules.lt <= 25
    for epoch in range(2):
        for _ in source.epoch(epoch, ()):
            assert source.figures()["volume"] >= 0  # of the ring, at any time
    assert counted(source)["volume_max"] >= 20


def test_room_for_less_than_a_batch_is_refused(pool_here, served):
    with pytest.raises(BadInput, match="not more than one batch would fit"):
        served(pool_here(), lt=0.0001, ut=0.001, thresholds_in="megabytes")


def test_the_plans_order_is_kept_where_it_is_asked_for(pool_here, served):
    source, samples, _ = served(pool_here(teachers=2), order="strict")
    indices = [batch.index for batch in source.epoch(0, ())]
    assert indices == list(range(len(samples.batches(0))))


def test_what_lies_ready_stays_within_its_bounds(pool_here, served):
    """A trainer without steps calls for a lot; never for more than there is."""
    source, _, _ = served(pool_here(teachers=1), epochs=10, ut=100, lt=20)
    for epoch in range(10):
        for _ in source.epoch(epoch, ()):
            assert source.figures()["volume"] >= 0  # of the ring, at any time
    assert 20 <= counted(source)["volume_max"] <= 2400  # ten epochs of 240


def test_the_papers_policy_is_complete_too(pool_here, served):
    source, samples, _ = served(pool_here(teachers=2), policy="paper", epochs=4)
    complete(train(source, 4), samples, 4)


def test_labels_stay_while_they_are_trained_on(pool_here, served):
    """A slot is not written again before the next batch is asked for."""
    pool = pool_here(teachers=2)
    source, _, _ = served(pool, epochs=3)
    for epoch in range(3):
        for batch in source.epoch(epoch, ()):
            before = batch.soft.clone(), batch.views.clone()
            pool.status()  # the pool's thread goes on meanwhile
            assert torch.equal(before[0], batch.soft)
            assert torch.equal(before[1], batch.views)


def test_a_slow_student_gets_one_teacher_and_a_fast_one_both(pool_here, served):
    """n = ceil(t_s / t_t); a student that goes gives its teachers back."""
    pool = pool_here(teachers=2)
    for rate, held in ((1.0, 1), (1e9, 2)):
        source, _, events = served(pool, rate=rate, settle_s=600.0)
        list(source.epoch(0, ()))
        assert len(select(events, "teacher_joined")) == held
        (scheduled,) = select(events, "scheduled")
        assert scheduled.t_s == rate
        assert (scheduled.n == 1) == (held == 1)
        source.close()
        until(lambda: states(pool) == ["free", "free"])


def emulated(pool, count, rate):
    config = EmulatedTeachersConfig(
        scheduler=pool.address, host="127.0.0.1", tls=None, scratch="", teachers=count,
        t_t=rate,
    )  # fmt: skip
    for number in range(count):
        pool.add_emulated(number, rate, config)


def test_teachers_that_only_take_their_time_are_leased_by_their_rate(
    pool_here, served, deployment
):
    pool = pool_here(replace(deployment, reference=()))
    emulated(pool, 40, 200.0)
    until(lambda: states(pool) == ["free"] * 40)
    source, samples, events = served(pool, rate=1000.0, epochs=1, settle_s=600.0)
    complete(train(source, 1), samples, 1)
    joined = select(events, "teacher_joined")
    assert len(joined) == 5  # 1000 / 200
    assert {event.device for event in joined} == {"emulated"}


@pytest.mark.parametrize("side", ["teachers", "wire"])
def test_the_slow_side_is_named_by_what_both_sides_measure(
    pool_here, served, deployment, side
):
    pool = pool_here(replace(deployment, reference=()))
    if side == "teachers":
        emulated(pool, 1, 200.0)
        until(lambda: states(pool) == ["free"])
    else:
        pool.run(pool.add_teacher(chaos=True).delay(600.0, 0.1))
    source, _, _ = served(pool, epochs=1, ut=60)
    for _ in source.epoch(0, ()):
        pass  # as fast as they come
    source.close()
    bottleneck = of_result(source.figures())
    assert bottleneck.side == side
    assert bottleneck.starved > 0.5


# Teachers that go


def test_a_killed_teacher_costs_no_sample(pool_here, served):
    pool = pool_here(teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=6, hedge=False)

    def act(epoch, number):
        if (epoch, number) == (1, 2):
            pool.kill(pool.teachers[0])

    complete(train(source, 6, act), samples, 6)
    (lost,) = select(events, "teacher_lost")
    assert lost.teacher == "teacher-0"
    assert counted(source)["resends"] == lost.resent


@pytest.mark.parametrize("order", ["any", "strict"])
def test_what_a_silent_teacher_owes_is_asked_of_another(pool_here, served, order):
    pool = pool_here(teachers=2)
    source, samples, events = served(
        pool, rate=1e9, epochs=8, ut=80, order=order, hedge=False
    )

    def act(epoch, number):
        if (epoch, number) == (1, 2):
            pool.silent(pool.teachers[0])

    complete(train(source, 8, act), samples, 8)
    (lost,) = select(events, "teacher_lost")
    assert (lost.teacher, lost.why) == ("teacher-0", "silent beyond its lease")


def test_a_silent_teacher_that_is_heard_again_comes_back(pool_here, served):
    pool = pool_here(teachers=2)
    cut = pool.teachers[0]
    source, samples, events = served(pool, rate=1e9, epochs=12, ut=80)

    def act(epoch, number):
        if (epoch, number) == (1, 2):
            pool.silent(cut)
        if (epoch, number) == (6, 0):
            pool.run(cut.partition(0.0))
            pool.run(cut._renew())  # it hears that it is not known any more

            def joined():
                return cut.ready and states(pool) == ["assigned"] * 2

            until(joined)

    complete(train(source, 12, act), samples, 12)
    names = [event.name for event in select(events, "teacher_joined")]
    assert names.count("teacher-0") == 2


def test_a_teacher_that_nobody_was_given_is_not_missed(pool_here, served):
    pool = pool_here(teachers=2)
    source, samples, events = served(pool, at_most=1, epochs=4)
    (spare,) = [t.address for t in pool.status().teachers if t.state == "free"]

    def act(epoch, number):
        if (epoch, number) == (1, 5):
            pool.kill(next(t for t in pool.teachers if t.address == spare))

    complete(train(source, 4, act), samples, 4)
    assert not select(events, "teacher_lost")
    assert counted(source)["resends"] == 0


def test_an_idle_teacher_that_dies_has_nothing_to_send_again(pool_here, served):
    pool = pool_here(teachers=1)
    source, samples, events = served(pool, epochs=6)
    reader = source.reader._child.reader

    def idle():
        """It has seen all that was used, and what it may ask for is here."""
        reader._collect()
        reader.do(reader.machine.on_tick(time.monotonic()))
        return not reader.machine.figures()["in_flight"]

    def act(epoch, number):
        if (epoch, number) == (1, 5):
            until(lambda: pool.call(idle))
            pool.kill(pool.teachers[0])
            until(lambda: not reader.machine.teachers)
            pool.add_teacher()

    complete(train(source, 6, act), samples, 6)
    assert [(e.teacher, e.resent) for e in select(events, "teacher_lost")] == [
        ("teacher-0", 0)
    ]
    assert counted(source)["resends"] == 0


def test_a_polite_leave_costs_nothing(pool_here, served):
    pool = pool_here(teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=8, ut=200)
    leaving = pool.teachers[0]

    def act(epoch, number):
        if (epoch, number) == (2, 3):
            pool.call(lambda: setattr(leaving, "going", pool.spawn(leaving.withdraw())))

    complete(train(source, 8, act), samples, 8)
    until(lambda: leaving.ending is not None)
    assert leaving.ending.code == 0
    assert [e.teacher for e in select(events, "teacher_left")] == ["teacher-0"]
    assert not select(events, "teacher_lost")


def test_a_student_without_any_teacher_waits_for_the_next(pool_here, served):
    pool = pool_here(teachers=1)
    source, samples, events = served(pool, epochs=4, ut=60)

    def act(epoch, number):
        if (epoch, number) == (0, 1):
            pool.kill(pool.teachers[0])
            until(lambda: not source.reader._child.reader.machine.teachers)
            pool.add_teacher()

    complete(train(source, 4, act), samples, 4)
    names = [name for name, _ in events]
    assert "all_teachers_lost" in names
    assert names.index("all_teachers_lost") < len(names) - 1 - names[::-1].index(
        "teacher_joined"
    )
    (gone,) = select(events, "all_teachers_lost")
    assert gone.coordinator == pool.address  # what the command to start one needs


def test_a_stop_ends_the_wait_for_teachers(pool_here, served):
    pool = pool_here(teachers=1)
    asked = []
    source, _, _ = served(pool, epochs=50, ut=60, stop=lambda: bool(asked))

    def act(epoch, number):
        if not asked:
            pool.kill(pool.teachers[0])
            asked.append(True)

    with pytest.raises(RunStopped):
        train(source, 50, act)


def test_a_teacher_that_joins_is_used(pool_here, served):
    pool = pool_here(teachers=1)
    source, samples, events = served(pool, rate=1e9, epochs=12)

    def act(epoch, number):
        if (epoch, number) == (1, 0):
            pool.add_teacher()

    complete(train(source, 12, act), samples, 12)
    assert [e.name for e in select(events, "teacher_joined")] == ["teacher-0", "teacher-1"]
    assert pool.teachers[1].inference.answered > 0


# The reader


@pytest.mark.parametrize("order", ["any", "strict"])
def test_a_killed_reader_is_started_again(pool_here, served, order):
    pool = pool_here(teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=10, ut=100, order=order)

    def act(epoch, number):
        if (epoch, number) in ((3, 4), (7, 0)):
            source.reader._child.kill()

    complete(train(source, 10, act), samples, 10)
    assert len(select(events, "reader_restarted")) == 2
    assert not select(events, "teacher_lost")


def test_a_reader_that_dies_again_and_again_ends_the_run(pool_here, served):
    pool = pool_here(teachers=1)
    source, _, events = served(pool, rate=1e9, epochs=50, ut=100)
    with pytest.raises(ClusterError, match="It was restarted 5 times"):
        train(source, 50, lambda epoch, number: source.reader._child.kill())
    assert len(select(events, "reader_restarted")) == 5


def test_the_journals_of_a_run_replay(pool_here, served, tmp_path):
    pool = pool_here(teachers=2, journal=str(tmp_path / "coordinator.jsonl"))
    source, samples, _ = served(pool, rate=1e9, epochs=5, record=True)

    def act(epoch, number):
        if (epoch, number) == (3, 0):
            pool.kill(pool.teachers[0])

    train(source, 4, act)
    source.close()
    reader = replay(source.log.with_suffix(".jsonl"))
    reader.check()
    batches = len(samples.batches(0))
    assert sorted(set(reader.delivered))[: 4 * batches] == [
        (e, b) for e in range(4) for b in range(batches)
    ]
    assert len(reader.delivered) == len(set(reader.delivered))
    table = replay(tmp_path / "coordinator.jsonl")
    table.check()
    assert table.events["on_ready"] == 2
    assert table.events["on_lost"] >= 1
    lines = (tmp_path / "coordinator.jsonl").read_text().splitlines()
    for line, entry in enumerate(map(json.loads, lines)):
        if entry.get("on") == "on_demand":
            entry["args"][1] = 1e-9  # a student that needs nothing gets other leases
            lines[line] = json.dumps(entry)
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join(lines))
    with pytest.raises(AssertionError, match="led to"):
        replay(changed).check()


# The coordinator


def test_a_coordinator_that_is_new_hears_everything_again(pool_here, served, deployment):
    pool = pool_here(teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=12)

    def act(epoch, number):
        if (epoch, number) == (4, 0):
            pool.restart_coordinator(ttl_s=6.0)
            for teacher in pool.teachers:
                pool.run(teacher._renew())

    complete(train(source, 12, act), samples, 12)
    until(lambda: states(pool) == ["assigned"] * 2)
    assert list(pool.status().students) == ["test"]
    assert pool.status().deployed == deployment.fingerprint
    assert not select(events, "all_teachers_lost")


def test_while_nobody_coordinates_the_teachers_serve_on(pool_here, served):
    pool = pool_here(teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=500, ut=100)
    ids, epoch = [], 0

    def train_until(condition):
        nonlocal epoch
        while not condition():
            ids.extend((epoch, batch.ids.copy()) for batch in source.epoch(epoch, ()))
            epoch += 1

    pool.remote.up = False
    pool.call(lambda: pool.coordinator.student_gone("test"))  # its wait is over
    train_until(lambda: select(events, "coordinator_away"))
    pool.remote.up = True
    train_until(lambda: select(events, "coordinator_back"))
    complete(ids, samples, epoch)
    assert not select(events, "teacher_lost")


def test_two_students_share_and_the_first_loses_nothing(pool_here, served):
    pool = pool_here(teachers=2)
    first, samples, events = served(pool, rate=1e9, epochs=10, student="first")
    ids = [(0, b.ids.copy()) for b in first.epoch(0, ())]
    second, _, _ = served(pool, rate=1e9, epochs=3, student="second")
    ids += [(e, b.ids.copy()) for e in range(1, 10) for b in first.epoch(e, ())]
    complete(ids, samples, 10)
    complete(train(second, 3), samples, 3)
    assert select(events, "teacher_left")  # moved, gracefully
    assert not select(events, "teacher_lost")
    assert counted(first)["resends"] == 0


def test_teachers_of_a_student_that_fell_silent_come_free(pool_here, served):
    pool = pool_here(teachers=2)
    first, _, _ = served(pool, rate=1.0, epochs=2, student="one")
    list(first.epoch(0, ()))
    first.reader._child.kill()  # no goodbye

    def late():
        pool.coordinator.students_seen["one"] -= 16.0
        pool.coordinator.tick()

    pool.call(late)
    assert not pool.status().students
    assert states(pool) == ["free", "free"]
    second, samples, _ = served(pool, rate=1e9, epochs=2, student="two")
    complete(train(second, 2), samples, 2)


# Teachers that must not serve


def test_answers_that_are_no_numbers_are_refused(pool_here, served, spoilt):
    """One weight of the pool's only teacher is NaN."""

    def put_nan(state):
        state["head.bias"][3] = float("nan")

    pool = pool_here(spoilt(put_nan), teachers=1)
    with pytest.raises(
        NoTeacherLeft, match=r"(5|10|20) of (5|10|20)0 numbers of its answer are not"
    ):
        served(pool, wait_s=0.5)


def test_labels_of_another_teacher_than_asked_for_are_not_taken(pool_here, served):
    pool = pool_here(teachers=1)
    pool.teacher = "another"
    with pytest.raises(NoTeacherLeft, match="it now serves teacher"):
        served(pool, epochs=1, wait_s=0.5)
