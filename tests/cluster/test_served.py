"""Served soft labels over real processes: right, complete, and bounded."""

import contextlib
import os
import re
import signal
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from tests_support import trained_ids

from kdlab.cluster.emulated_pool import EmulatedPool
from kdlab.cluster.schedulers import status_of
from kdlab.cluster.transport.wire import ask, check_address
from kdlab.errors import BadInput, RunStopped, SchedulerUnreachable
from kdlab.report.bottleneck import of_result
from kdlab.soft_labels.cached import Cached
from kdlab.soft_labels.source import SourceContext
from kdlab.testing import check_source

# (epoch, batch) of what a recorded reader sends, a second time to another teacher perhaps.
SENT = r'"kind": "Send", "part": \[(\d+), (\d+)'


@pytest.mark.processes("a pool and six readers, one after the other")
@pytest.mark.parametrize(
    ("inputs", "replies", "order"),
    [
        ("reference", "full", "any"),
        pytest.param("reference", "top_k", "strict", marks=pytest.mark.nightly),
        pytest.param("value_uint8", "half", "strict", marks=pytest.mark.nightly),
        pytest.param("value_float32", "full", "any", marks=pytest.mark.nightly),
    ],
)
def test_conforms_and_equals_the_teacher(
    pools, served, deployment, teacher, digits, inputs, replies, order
):
    pool = pools(deployment, teachers=1)
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


@pytest.mark.nightly
@pytest.mark.processes
def test_kept_labels_are_asked_for_once_and_become_an_offline_cache(
    pools, served, deployment, teacher, digits, tmp_path, monkeypatch
):
    monkeypatch.setenv(
        "KDLAB_HOME", str(tmp_path)
    )  # labels that other tests kept are not here
    pool = pools(deployment, teachers=1)
    source, samples, _ = served(pool, cache_views=1, epochs=4, record=True)
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
    offline = Cached(views=1).build(context)
    for batch in offline.epoch(0, ()):
        for i, soft in zip(batch.ids.tolist(), batch.soft, strict=True):
            assert torch.allclose(soft, labels[0][i], atol=2e-2)
    # The first epoch, and what `ut` lets be asked for before its last answer was there.
    assert len(samples.batches(0)) <= len(asked) <= 2 * len(samples.batches(0))


@pytest.mark.nightly
@pytest.mark.processes
def test_batches_are_cut_to_the_teachers_best_and_put_together(
    served, deployment, teacher, digits, pools
):
    """The deployment's batch is 20; here the student's is 90, cut into five."""
    source, _, _ = served(pools(deployment, teachers=2), batch=90, ut=400)
    loaded = teacher.load(digits[0], "cpu")
    for batch in source.epoch(0, ()):
        assert torch.allclose(batch.soft, loaded.infer(batch.views), atol=1e-4)


@pytest.mark.nightly
@pytest.mark.processes
def test_an_ensemble_serves_the_mean_of_its_members(pools, served, deployment, digits):
    (member,) = deployment.members
    twice = replace(
        deployment,
        members=(replace(member, weight=1.0), replace(member, weight=3.0)),
        teacher="ensemble",
    )
    single, _, _ = served(pools(deployment, teachers=1), order="strict")
    ensemble, _, _ = served(pools(twice, teachers=1), order="strict")
    for expected, batch in zip(single.epoch(0, ()), ensemble.epoch(0, ()), strict=True):
        assert torch.allclose(expected.soft.log_softmax(1), batch.soft, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("unit", ["megabytes", "memory_share"])
def test_thresholds_in_bytes_and_in_shares_of_free_memory(pools, served, deployment, unit):
    size = 64 + 40  # 1×8×8 pixels and ten float32 logits
    free = psutil.virtual_memory().available
    ut = 100 * size / (1e6 if unit == "megabytes" else free)
    source, _, _ = served(
        pools(deployment), epochs=10, lt=ut / 5, ut=ut, thresholds_in=unit
    )
    assert 90 <= source.reader.config.rules.ut <= 110
    assert 15 <= source.reader.config.rules.lt <= 25
    for epoch in range(10):
        for _ in source.epoch(epoch, ()):
            assert source.figures()["volume"] >= 0
    assert source.figures()["volume_max"] >= 20


@pytest.mark.nightly
@pytest.mark.processes
def test_too_little_room_for_a_batch_is_refused_before_anything_starts(
    pools, served, deployment
):
    with pytest.raises(BadInput, match="not more than one batch would fit"):
        served(pools(deployment), lt=0.0001, ut=0.001, thresholds_in="megabytes")


@pytest.mark.nightly
@pytest.mark.processes
def test_no_scratch_files_are_left(pools, served, deployment, tmp_path):
    pool = pools(deployment)
    scratch = tmp_path / "pool" / "scratch"
    assert list(scratch.iterdir())
    pool.close()
    assert not scratch.exists()


def test_a_deployment_is_the_same_after_the_wire(deployment):
    """Lists become tuples there; hash and specs must not change."""
    data = {"type": "data/image_folder", "root": ["a.zip", "b.zip"]}
    several = replace(deployment, data=data)

    def as_dask_does(value):
        if isinstance(value, dict):
            return {k: as_dask_does(v) for k, v in value.items()}
        return tuple(map(as_dask_does, value)) if isinstance(value, list | tuple) else value

    arrived = type(several).from_json(as_dask_does(several.to_json()))
    assert arrived == several
    assert arrived.fingerprint == several.fingerprint
    assert arrived.data["root"] == ["a.zip", "b.zip"]


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("side", ["teachers", "wire"])
def test_the_slow_side_is_named_from_what_both_sides_measured(
    pools, served, deployment, tmp_path, side
):
    """Requests stand before a teacher that computes slowly, or leave it late on a slow wire."""
    if side == "teachers":
        pool = EmulatedPool(teachers=1, t_t=500).start(deployment, tmp_path / "emulated")
        pool.wait()
    else:
        pool = pools(deployment, teachers=1, chaos=True)
        (teacher,) = status_of(pool.address, pool.tls).ready
        ask(teacher.address, "kdlab_delay", tls=pool.tls, seconds=600.0, delay_s=0.2)
    try:
        source, _, _ = served(pool, epochs=1, ut=60)
        for _ in source.epoch(0, ()):
            pass  # as fast as they come
        bottleneck = of_result(source.figures())
    finally:
        pool.close()
    assert bottleneck.side == side
    assert bottleneck.starved > 0.5


@pytest.mark.nightly
@pytest.mark.processes
def test_strict_order_is_the_plans(pools, served, deployment):
    source, samples, _ = served(pools(deployment), order="strict")
    indices = [batch.index for batch in source.epoch(0, ())]
    assert indices == list(range(len(samples.batches(0))))


@pytest.mark.nightly
@pytest.mark.processes
def test_the_store_is_bounded_by_ut_or_by_what_the_rates_call_for(
    pools, served, deployment
):
    """Exactly in the pure machine; here a trainer without steps calls for a lot."""
    source, _, _ = served(pools(deployment), epochs=10, ut=100, lt=20)
    for epoch in range(10):
        for _ in source.epoch(epoch, ()):
            assert source.figures()["volume"] >= 0
    assert 20 <= source.figures()["volume_max"] <= 2400  # ten epochs of 240


@pytest.mark.nightly
@pytest.mark.processes
def test_the_static_share_is_assigned(pools, served, deployment):
    """n = ceil(t_s / t_t): a slow student gets one of two teachers, a fast one both."""
    pool = pools(deployment, teachers=2)
    for rate, held in ((1.0, 1), (1e9, 2)):
        source, _, events = served(pool, rate=rate, settle_s=600.0)
        list(source.epoch(0, ()))
        joined = [data for name, data in events if name == "teacher_joined"]
        assert len(joined) == held
        (scheduled,) = [data for name, data in events if name == "scheduled"]
        assert scheduled.t_s == rate
        assert (scheduled.n == 1) == (held == 1)
        source.close()
        states = {
            t["state"] for t in ask(pool.address, "kdlab_status", tls=pool.tls)["teachers"]
        }
        assert states == {"free"}  # a student that goes gives its teachers back


@pytest.mark.processes("a scheduler, two teachers and a reader, until one is killed")
def test_sigkill_mid_epoch_loses_and_repeats_nothing(pools, served, deployment):
    """The student has both when one dies, and goes on until it knows."""
    pool = pools(deployment, teachers=2)
    source, samples, events = served(pool, rate=1e9, epochs=5000)

    def select(kind):
        return [data for name, data in events if name == kind]

    ids, killed = [], False
    for epoch in range(5000):
        for number, batch in enumerate(source.epoch(epoch, ())):
            ids.append((epoch, batch.ids.copy()))
            if number == 2 and not killed and len(select("teacher_joined")) == 2:
                os.kill(pool.machines.children[0].pid, signal.SIGKILL)
                killed = True
        if select("teacher_lost"):
            break
    for trained in range(epoch + 1):
        assert sorted(trained_ids(ids, trained)) == sorted(samples.train_ids())
    assert [event.teacher for event in select("teacher_lost")] == ["teacher-0"]


@pytest.mark.nightly
@pytest.mark.processes
def test_all_teachers_gone_and_one_back(pools, served, deployment):
    pool = pools(deployment, teachers=1)
    source, samples, events = served(pool, epochs=4, ut=60)
    ids = []
    for epoch in range(4):
        for number, batch in enumerate(source.epoch(epoch, ())):
            ids.append((epoch, batch.ids.copy()))
            if epoch == 0 and number == 1:
                os.kill(pool.machines.children[0].pid, signal.SIGKILL)
                pool.machines.add()  # takes seconds to come up: the student waits
    for epoch in range(4):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())
    names = [name for name, _ in events]
    assert "all_teachers_lost" in names
    assert names.index("all_teachers_lost") < len(names) - 1 - names[::-1].index(
        "teacher_joined"
    )


@pytest.mark.nightly
@pytest.mark.processes
def test_a_stop_is_heard_while_waiting_for_teachers(pools, served, deployment):
    pool = pools(deployment, teachers=1)
    asked = []
    source, _, _ = served(pool, epochs=50, ut=60, stop=lambda: bool(asked))

    def train():
        for epoch in range(50):
            for _ in source.epoch(epoch, ()):
                if not asked:
                    os.kill(pool.machines.children[0].pid, signal.SIGKILL)
                    asked.append(True)

    with pytest.raises(RunStopped):
        train()


@pytest.mark.nightly
@pytest.mark.processes
def test_the_papers_policy_runs(pools, served, deployment):
    source, samples, _ = served(pools(deployment), policy="paper", epochs=4)
    ids = [(e, b.ids.copy()) for e in range(4) for b in source.epoch(e, ())]
    for epoch in range(4):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())


@pytest.mark.processes
def test_emulated_teachers_serve_like_real_ones(served, deployment, tmp_path):
    """Forty in one process: joined, leased by rate, counted, and labelled as emulated."""
    pool = EmulatedPool(teachers=40, t_t=200.0).start(deployment, tmp_path / "pool")
    with contextlib.closing(pool):
        assert len(pool.wait().teachers) == 40
        source, samples, events = served(pool, rate=1000.0, epochs=3, settle_s=600.0)
        ids = [(e, b.ids.copy()) for e in range(3) for b in source.epoch(e, ())]
        for epoch in range(3):
            assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())
        joined = [data for name, data in events if name == "teacher_joined"]
        assert len(joined) == 5  # 1000 / 200
        assert {data.device for data in joined} == {"emulated"}


def test_a_call_from_a_notebook_cell():
    """A cell has a running event loop already."""
    import asyncio

    async def cell():
        check_address("tcp://127.0.0.1:9", wait_s=0.2)

    with pytest.raises(SchedulerUnreachable):
        asyncio.run(cell())


def test_nothing_at_the_address_is_said_with_the_address():
    with pytest.raises(SchedulerUnreachable, match=r"tcp://127\.0\.0\.1:9"):
        check_address("tcp://127.0.0.1:9", wait_s=0.2)
    with pytest.raises(SchedulerUnreachable, match="nonsense"):
        check_address("nonsense://x", wait_s=0.2)


@pytest.mark.nightly
@pytest.mark.processes
def test_soft_labels_do_not_change_under_the_trainer(pools, served, deployment):
    """A slot is not written again before the next batch is asked for."""
    source, _, _ = served(pools(deployment), epochs=3)
    for epoch in range(3):
        for batch in source.epoch(epoch, ()):
            before = batch.soft.clone(), batch.views.clone()
            source.context.stop()  # any work of the trainer
            np.sort(np.random.default_rng(0).random(200_000))
            assert torch.equal(before[0], batch.soft)
            assert torch.equal(before[1], batch.views)
