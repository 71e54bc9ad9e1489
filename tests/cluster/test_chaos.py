"""Teachers and coordinator killed, stopped and spoilt for real; every sample is counted."""

import contextlib
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests_support import trained_ids, until

from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.teachers.probe import probe_images
from kdlab.cluster.transport.wire import ask
from kdlab.config.seal import file_sha256
from kdlab.errors import ClusterError, NoTeacherLeft, SchedulerUnreachable

pytestmark = pytest.mark.slow(
    "a scheduler, two teachers and a reader, until a lease ran out"
)

# test_pool_in_process.py has both orders always.
ORDERS = ["any", pytest.param("strict", marks=pytest.mark.nightly)]


def train(source, epochs, act=lambda epoch, number: None, pace_s=0.0):
    """Take every batch; `act` is called after each. Pace: what a step would take."""
    ids = []
    for epoch in range(epochs):
        for number, batch in enumerate(source.epoch(epoch, ())):
            ids.append((epoch, batch.ids.copy()))
            act(epoch, number)
            time.sleep(pace_s)  # stands for the student's own work
    return ids


def complete(ids, samples, epochs):
    for epoch in range(epochs):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())


@pytest.mark.parametrize("order", ORDERS)
def test_a_hung_teacher_expires_and_its_work_is_sent_again(
    pools, served, deployment, order
):
    pool = pools(deployment, teachers=2, ttl_s=2.0)
    source, samples, events = served(pool, rate=1e9, epochs=4000, ut=80, order=order)
    hung = pool.machines.children[0].pid

    def lost():
        return {data.teacher: data.why for name, data in events if name == "teacher_lost"}

    ids, epoch = [], 0
    try:
        while "teacher-0" not in lost():
            ids += [(epoch, batch.ids.copy()) for batch in source.epoch(epoch, ())]
            if epoch == 0:
                os.kill(hung, signal.SIGSTOP)
            epoch += 1
    finally:
        os.kill(hung, signal.SIGCONT)
    complete(ids, samples, epoch)
    # On a busy machine the other one may be silent for 2 s, too.
    assert lost()["teacher-0"] == "silent beyond its lease"


@pytest.mark.nightly
def test_a_polite_leave_sends_nothing_again(pools, served, deployment):
    pool = pools(deployment, teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=40, ut=200)

    def act(epoch, number):
        if (epoch, number) == (2, 3):
            os.kill(pool.machines.children[0].pid, signal.SIGTERM)

    complete(train(source, 40, act, pace_s=0.002), samples, 40)
    left = [data for name, data in events if name == "teacher_left"]
    assert [data.teacher for data in left] == ["teacher-0"]
    assert not [name for name, _ in events if name == "teacher_lost"]
    pool.machines.children[0].process.wait(30)
    assert pool.machines.children[0].process.returncode == 0


def spoilt(deployment, tmp_path, change):
    """Return the deployment with a file of weights that `change` has altered."""
    (member,) = deployment.members
    state = load_file(member.weights)
    change(state)
    path = tmp_path / "spoilt.safetensors"
    save_file(state, path)
    member = replace(member, weights=str(path), sha256=file_sha256(path))
    return replace(deployment, members=(member,))


def put_nan(state):
    state["head.bias"][3] = float("nan")


@pytest.mark.nightly
def test_a_teacher_that_answers_nan_is_refused_with_the_numbers(
    pools, served, deployment, tmp_path
):
    """One weight of the pool's only teacher is NaN."""
    damaged = spoilt(deployment, tmp_path, put_nan)
    with pytest.raises(
        NoTeacherLeft, match=r"[12]0 of [12]00 numbers of its answer are not"
    ):
        served(pools(damaged, teachers=1), wait_s=2.0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put_nan, "4 of 40 numbers of its answer to the probe are not finite"),
        (lambda state: state["head.weight"].mul_(1.2), "differs by .* 5% is allowed"),
    ],
)
def test_a_teacher_that_fails_the_probe_never_serves(
    pools, teacher, deployment, digits, tmp_path, change, why
):
    """The reference comes from the right weights, the teacher loads others."""
    images = torch.from_numpy(probe_images(deployment.shape))
    right = teacher.load(digits[0], "cpu").infer(images).tolist()
    damaged = spoilt(deployment, tmp_path, change)
    damaged = replace(damaged, reference=tuple(map(tuple, right)))
    with (
        contextlib.closing(LocalPool(teachers=1).start(damaged, tmp_path / "p")) as pool,
        pytest.raises(ClusterError, match=why),
    ):
        pool.wait()
    with contextlib.closing(
        LocalPool(teachers=1).start(
            replace(deployment, reference=damaged.reference), tmp_path / "right"
        )
    ) as pool:
        pool.wait()


@pytest.mark.nightly
def test_a_teacher_with_other_views_is_refused(pools, served, deployment, tmp_path):
    changed = replace(deployment, identity=replace(deployment.identity, views="0" * 16))
    with (
        contextlib.closing(
            LocalPool(teachers=1).start(changed, tmp_path / "refused")
        ) as pool,
        pytest.raises(ClusterError, match="makes other views"),
    ):
        pool.wait()
    changed = replace(changed, by_reference=False)
    source, samples, _ = served(pools(changed, teachers=1), inputs="value_uint8", epochs=2)
    complete(train(source, 2), samples, 2)  # by value it needs no views of its own


def test_the_scheduler_is_killed_and_training_goes_on(pools, served, deployment):
    """Its teachers keep their models and their wires; it comes back at its address."""
    pool = pools(deployment, teachers=2, replace_lost=True)
    source, samples, events = served(pool, rate=1e9, epochs=10**6, ut=100)
    pids = {child.pid for child in pool.machines.children}
    ids, epoch = [], 0

    def list_events():
        return [name for name, _ in events]

    def train_until(condition):
        nonlocal epoch
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline
            ids.extend((epoch, batch.ids.copy()) for batch in source.epoch(epoch, ()))
            epoch += 1

    train_until(lambda: epoch > 2)
    killed = pool.scheduler.pid
    os.kill(killed, signal.SIGKILL)
    train_until(lambda: "coordinator_away" in list_events())  # and teachers serve on
    train_until(lambda: "coordinator_back" in list_events())
    train_until(lambda: in_use(pool) == 2)
    train_until(lambda: epoch > 50)
    for number in range(epoch):
        assert sorted(trained_ids(ids, number)) == sorted(samples.train_ids())
    assert pool.scheduler.pid != killed
    assert {
        child.pid for child in pool.machines.children
    } == pids  # nobody was started again


def in_use(pool):
    try:
        status = ask(pool.address, "kdlab_status", tls=pool.tls)
    except SchedulerUnreachable:
        return 0
    return sum(t["state"] == "assigned" for t in status["teachers"])


@pytest.mark.parametrize("order", ORDERS)
def test_a_killed_reader_is_started_again_within_the_run(pools, served, deployment, order):
    pool = pools(deployment, teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=20, ut=100, order=order)
    ids = []
    for epoch in range(20):
        for number, batch in enumerate(source.epoch(epoch, ())):
            ids.append((epoch, batch.ids.copy()))
            if (epoch, number) in ((3, 4), (7, 0)):
                os.kill(source.reader.pid, signal.SIGKILL)
    complete(ids, samples, 20)
    restarts = [data for name, data in events if name == "reader_restarted"]
    assert len(restarts) == 2
    assert "teacher_lost" not in [name for name, _ in events]


def test_a_reader_that_stands_still_is_killed_and_replaced(pools, served, deployment):
    pool = pools(deployment, teachers=1)
    source, samples, events = served(pool, rate=1e9, epochs=4, ut=100, hang_s=1.0)
    ids = []
    for epoch in range(4):
        for number, batch in enumerate(source.epoch(epoch, ())):
            ids.append((epoch, batch.ids.copy()))
            if (epoch, number) == (1, 1):
                os.kill(source.reader.pid, signal.SIGSTOP)
    complete(ids, samples, 4)
    (restarted,) = [data for name, data in events if name == "reader_restarted"]
    assert restarted.why.startswith("The reader hangs for")


@pytest.mark.nightly
def test_a_reader_that_cannot_live_ends_the_run(pools, served, deployment):
    pool = pools(deployment, teachers=1)
    source, _, _ = served(pool, rate=1e9, epochs=1000, ut=100)

    def kill_each():
        for epoch in range(1000):
            for _ in source.epoch(epoch, ()):
                os.kill(source.reader.pid, signal.SIGKILL)

    with pytest.raises(ClusterError, match="It was restarted 5 times"):
        kill_each()


@pytest.mark.nightly
def test_random_kills_and_joins_lose_nothing(pools, served, deployment):
    """Twelve SIGKILLs at random moments, a new teacher for each; order, times: seed 7."""
    chance = random.Random(7)
    pool = pools(deployment, teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=4000, ut=100, wait_s=300.0)
    ids, kills, epoch = [], 0, 0

    def joined():
        return sum(name == "teacher_joined" for name, _ in events)

    while kills < 12 or joined() < 3:  # a newcomer may be killed before it joins
        for batch in source.epoch(epoch, ()):
            ids.append((epoch, batch.ids.copy()))
            alive = [t for t in pool.machines.children if t.alive()]
            if kills < 12 and chance.random() < 0.02 and alive:
                victim = chance.choice(alive)
                os.kill(victim.pid, signal.SIGKILL)
                victim.process.wait()
                pool.machines.add()
                kills += 1
        epoch += 1
    complete(ids, samples, epoch)
    assert source.figures()["resends"] > 0


@pytest.mark.nightly
def test_two_students_share_a_pool_and_a_dead_ones_teachers_come_free(
    pools, served, deployment
):
    pool = pools(deployment, teachers=2)
    first, _, _ = served(pool, rate=1.0, epochs=2)
    list(first.epoch(0, ()))
    os.kill(first.reader.pid, signal.SIGKILL)  # no goodbye
    until(
        lambda: not ask(pool.address, "kdlab_status", tls=pool.tls)["students"], every_s=0.2
    )
    second, samples, _ = served(pool, rate=1e9, epochs=2)
    complete(train(second, 2), samples, 2)
