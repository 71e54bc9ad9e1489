"""Pools as real clusters treat them: teachers start, fetch weights, die, and are hosted."""

import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests_support import free_port, listens, trained_ids, until

from kdlab.cluster.child_configs import TeacherConfig
from kdlab.cluster.remote_pool import RemotePool
from kdlab.cluster.schedulers import send_weights, start_scheduler
from kdlab.cluster.transport.known_schedulers import trust
from kdlab.cluster.transport.wire import ask
from kdlab.config.seal import file_sha256
from kdlab.errors import NoTeacherLeft
from kdlab.soft_labels.source import PoolAddress
from kdlab.supervision.children import Child

pytestmark = pytest.mark.slow(
    "schedulers and up to four teachers, each a Python with torch"
)


def status_of(address, tls=None):
    return ask(address, "kdlab_status", tls=tls)


def complete(source, samples, epochs):
    ids = [(e, b.ids.copy()) for e in range(epochs) for b in source.epoch(e, ())]
    for epoch in range(epochs):
        assert sorted(trained_ids(ids, epoch)) == sorted(samples.train_ids())


def teacher(address, folder, name, **options):
    config = TeacherConfig(
        scheduler=address,
        name=name,
        host="127.0.0.1",
        threads=1,
        scratch=str(folder / name),
        device="cpu",
        **{"tls": None} | options,
    )
    return Child("kdlab.cluster.teachers.teacher_server", config, folder / f"{name}.log")


@pytest.fixture
def scheduled(tmp_path):
    """Starts schedulers and teachers, and ends them whatever the test does."""
    children = []

    def scheduler(deployment, port=0):
        child, address = start_scheduler(
            deployment, tmp_path / "pool", ttl_s=6.0, port=port
        )
        children.append(child)
        return child, address

    def add(*args, **options):
        children.append(teacher(*args, **options))
        return children[-1]

    yield scheduler, add
    for child in children:
        child.stop()


def free(address):
    return [t for t in status_of(address)["teachers"] if t["state"] == "free"]


@pytest.mark.nightly
def test_weights_come_from_the_coordinator_and_then_from_teachers(
    scheduled, deployment, served, tmp_path
):
    scheduler, add = scheduled
    (member,) = deployment.members
    gone = replace(member, weights=str(tmp_path / "not" / "here"))
    elsewhere = replace(deployment, members=(gone,))
    first_scheduler, address = scheduler(elsewhere)
    send_weights(address, Path(member.weights), member.sha256, None)
    add(address, tmp_path, "first")
    until(lambda: free(address))
    first_scheduler.process.kill()  # with it goes what the run had sent
    first_scheduler.process.wait()
    scheduler(elsewhere, port=int(address.rsplit(":", 1)[1]))
    until(lambda: [t for t in free(address) if (t["facts"] or {}).get("weights")])
    add(address, tmp_path, "second")  # only the first one has them now
    until(lambda: len(free(address)) == 2)
    fetched = list((tmp_path / "second").rglob("*.safetensors"))
    assert [file_sha256(path) for path in fetched] == [member.sha256]
    pool = PoolAddress(address=address, teacher=deployment.teacher, tls=None)
    source, samples, _ = served(pool, epochs=2)
    complete(source, samples, 2)


@pytest.mark.nightly
def test_labels_of_another_teacher_are_never_given(scheduled, deployment, served, tmp_path):
    """A pool may serve something else by the time a reader asks."""
    scheduler, add = scheduled
    _, address = scheduler(deployment)
    add(address, tmp_path, "one")
    until(lambda: free(address))
    pool = PoolAddress(address=address, teacher="another", tls=None)
    with pytest.raises(NoTeacherLeft, match="it now serves teacher"):
        served(pool, epochs=1, wait_s=5.0)


def test_exit_codes_tell_a_supervisor_what_happened(scheduled, deployment, tmp_path):
    scheduler, add = scheduled
    _, address = scheduler(deployment)
    polite = add(address, tmp_path, "polite")
    until(lambda: free(address))
    polite.process.send_signal(signal.SIGTERM)
    assert polite.process.wait(300) == 0
    notice = tmp_path / "taken-away"
    spot = add(address, tmp_path, "spot", notice=str(notice))
    until(lambda: free(address))
    notice.touch()
    assert spot.process.wait(300) == 0
    refused = add(address, tmp_path, "refused", sha256="0" * 64)  # has another model
    assert refused.process.wait(300) == 2
    assert "started for model 00000000" in refused.log.read_text()
    orphan = add(f"tcp://127.0.0.1:{free_port()}", tmp_path, "alone", patience_s=0.5)
    assert orphan.process.wait(300) == 3


@pytest.mark.nightly
def test_other_data_is_refused_or_served_by_value(scheduled, deployment, served, tmp_path):
    scheduler, add = scheduled
    identity = replace(deployment.identity, digest="0" * 16)
    deployed = replace(deployment, identity=identity, or_value=True)
    _, address = scheduler(deployed)
    add(address, tmp_path, "other")
    until(lambda: free(address))
    (teacher_,) = free(address)
    assert teacher_["facts"]["by_reference"] is False
    pool = PoolAddress(address=address, teacher=deployment.teacher, tls=None)
    source, samples, events = served(pool, epochs=2, inputs="auto")
    complete(source, samples, 2)
    assert "teacher_lost" not in [name for name, _ in events]


@pytest.mark.nightly
def test_a_fixed_pool_holds_its_number(pools, served, deployment):
    pool = pools(deployment, teachers=2, replace_lost=True)
    source, samples, _ = served(pool, rate=1e9, epochs=10)
    os.kill(pool.machines.children[0].pid, signal.SIGKILL)
    complete(source, samples, 10)

    def alive():
        return sum(child.alive() for child in pool.machines.children)

    until(lambda: len(pool.machines.children) == 3 and alive() == 2)
    until(lambda: len(free_or_held(pool)) == 2)
    polite = next(child for child in pool.machines.children if child.alive())
    polite.process.send_signal(signal.SIGTERM)
    polite.process.wait(300)
    until(lambda: len(free_or_held(pool)) == 1)
    assert len(pool.machines.children) == 3  # who was told to leave is not replaced


def free_or_held(pool):
    teachers = status_of(pool.address, pool.tls)["teachers"]
    return [t for t in teachers if t["state"] in ("free", "assigned")]


def test_any_dask_workers_can_host_teachers(deployment, served, tmp_path):
    """Those with the resource do, the others do not; teachers go with their worker."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"

    def dask(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words, "--no-dashboard"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    processes = [dask("scheduler", "--host", "127.0.0.1", "--port", str(port))]
    try:
        until(lambda: listens(port))
        common = ("--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")
        for name, more in (("host", ("--resources", "kdlab_teacher=1")), ("other", ())):
            folder = ("--local-directory", str(tmp_path / name), "--name", name)
            processes.append(dask("worker", address, *common, *folder, *more))
        until(lambda: len(ask(address, "identity")["workers"]) == 2)
        trust(address)
        spec = RemotePool(address=address, insecure=True, workers=2)
        pool = spec.start(deployment, tmp_path / "pool")
        try:
            until(lambda: len(free(address)) == 2)
            source, samples, _ = served(pool, epochs=3)
            complete(source, samples, 3)
            source.close()
            processes[1].kill()
            until(lambda: not status_of(address)["teachers"])
        finally:
            pool.close()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_prometheus_sees_the_pool_at_the_schedulers_metrics(deployment, served, tmp_path):
    """On a `dask scheduler` of a user, whose page it is; the pool's own has no pages at all."""
    port, page = free_port(), free_port()
    address = f"tcp://127.0.0.1:{port}"
    where = ("--host", "127.0.0.1", "--port", str(port))
    words = ("scheduler", *where, "--dashboard-address", f"127.0.0.1:{page}")
    preload = ("--preload", "kdlab.cluster.coordinator")
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "dask", *words, *preload],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = [scheduler]
    try:
        until(lambda: listens(port) and listens(page))
        trust(address)
        spec = RemotePool(address=address, insecure=True, ttl_s=60.0)
        pool = spec.start(deployment, tmp_path / "pool")
        children.append(teacher(address, tmp_path, "seen").process)
        until(lambda: free(address))
        source, samples, _ = served(pool, epochs=100)

        def number(name, **labels):
            with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics") as answer:
                families = text_string_to_metric_families(answer.read().decode())
            (metric,) = (
                sample.value
                for family in families
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )
            return metric

        batches = source.epoch(0, ())
        ids = [next(batches).ids.copy()]
        assert number("kdlab_teachers", state="assigned") == 1
        assert number("kdlab_teacher_samples_per_second", teacher="seen") > 0
        assert number("kdlab_student_needs_samples_per_second") > 0
        assert number("kdlab_leases_expired_total") == 0
        until(lambda: number("kdlab_student_labels_total") > 0)
        assert number("kdlab_student_answers_computed_seconds_total") > 0
        until(lambda: number("kdlab_teacher_answered_requests_total", teacher="seen") > 0)
        ids += [batch.ids.copy() for batch in batches]
        assert sorted(np.concatenate(ids)) == sorted(samples.train_ids())
        source.close()
        pool.close()
    finally:
        for process in children:
            process.kill()
            process.wait()
