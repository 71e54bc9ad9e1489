"""The coordinator: restarted, kept in Redis, journalled, moved to fair shares, encrypted."""

import asyncio
import contextlib
import json
import shutil
import socket
import struct
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from distributed import Client
from tests_support import free_port, listens, trained_ids, until

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.lease_store import (
    POOL,
    STUDENTS,
    TEACHERS,
    THE_POOL,
    PoolRow,
    StoredRows,
    StudentRow,
    make_store,
)
from kdlab.cluster.local_pool import LocalPool
from kdlab.cluster.schedulers import deploy
from kdlab.cluster.transport.security import Tls, dask_security
from kdlab.cluster.transport.wire import ask, check_address, run_isolated
from kdlab.codec import to_builtins
from kdlab.errors import SchedulerUnreachable
from kdlab.papers.edl_dist.fair_shares import Share, SharedTeacher
from kdlab.papers.edl_dist.reader_instructions import ReportBadTeacher
from kdlab.testing import replay


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


def restart_plugin(pool, plugin):
    async def swap():
        security = dask_security(pool.tls)
        async with Client(pool.address, asynchronous=True, security=security) as client:
            await client.unregister_scheduler_plugin("kdlab-coordinator")
            await client.register_plugin(plugin)

    run_isolated(swap)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_restarted_plugin_rebuilds_its_state_and_the_student_notices_nothing(
    pools, served, deployment
):
    """In memory: teachers register again with what they serve, the reader announces again."""
    pool = pools(deployment, teachers=2)
    source, samples, _ = served(pool, rate=1e9, epochs=400)

    def act(epoch, number):
        if (epoch, number) == (50, 0):
            restart_plugin(pool, Coordinator(ttl_s=6.0))
        if epoch == 60 and number < 10:
            time.sleep(0.3)  # training goes on while the teachers come back

    complete(train(source, 400, act), samples, 400)

    def states():
        status = ask(pool.address, "kdlab_status", tls=pool.tls)
        return [t["state"] for t in status["teachers"]]

    until(lambda: states() == ["assigned"] * 2)
    status = ask(pool.address, "kdlab_status", tls=pool.tls)
    assert list(status["students"]) == ["test"]
    assert status["deployed"] == deployment.fingerprint


@pytest.fixture
def redis(tmp_path):
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
    port = free_port()
    server = subprocess.Popen(
        [binary, "--port", str(port), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    from redis import Redis
    from redis.exceptions import ConnectionError as NotYet

    client = Redis(port=port, decode_responses=True)
    deadline = time.monotonic() + 300
    while True:
        try:
            client.ping()
            break
        except NotYet:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    yield client, f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


@pytest.mark.nightly
@pytest.mark.slow
def test_redis_keeps_leases_with_a_ttl_across_a_restart(pools, served, deployment, redis):
    client, url = redis
    pool = pools(deployment, teachers=2, store=url, ttl_s=60.0)
    source, samples, _ = served(pool, rate=1e9, epochs=300)
    prefix = f"kdlab:{pool.folder.parent.name}"
    seen = {}

    def act(epoch, number):
        if (epoch, number) == (50, 0):
            keys = list(client.scan_iter(f"{prefix}:teacher:*"))
            seen["ttl"] = [client.pttl(key) for key in keys]
            seen["shares"] = {k: json.loads(client.get(k))["shares"] for k in keys}
            plugin = Coordinator(ttl_s=60.0, store_url=url, store_prefix=prefix)
            restart_plugin(pool, plugin)
            status = ask(pool.address, "kdlab_status", tls=pool.tls)
            seen["after"] = [t["state"] for t in status["teachers"]]

    complete(train(source, 300, act), samples, 300)
    assert len(seen["ttl"]) == 2
    assert all(0 < left <= 60_000 for left in seen["ttl"])
    assert seen["after"] == ["assigned"] * 2  # at once, before anybody announced anything
    rows = {k: json.loads(client.get(k)) for k in client.scan_iter(f"{prefix}:teacher:*")}
    assert {k: row["shares"] for k, row in rows.items()} == seen["shares"]  # same leases
    assert source.figures()["resends"] == 0
    for child in pool.machines.children:
        child.process.kill()
    until(lambda: not list(client.scan_iter(f"{prefix}:teacher:*")))


@pytest.mark.nightly
@pytest.mark.slow
def test_teachers_that_still_load_take_what_the_pool_serves_by_then(pools, deployment):
    """Each of several deployments follows while somebody loads the one before."""
    pool = pools(deployment, teachers=2)
    last = deployment
    for classes in range(21, 27):  # another name of a class is another data set
        identity = replace(deployment.identity, augment=f"other {classes}")
        last = replace(deployment, identity=identity, by_reference=False)
        deploy(pool.address, last, tls=pool.tls, with_weights=False)
        pool.wait()  # for the first of both; the other may be in the middle of it
    deadline = time.monotonic() + 300
    while True:
        status = ask(pool.address, "kdlab_status", tls=pool.tls)
        ready = [t for t in status["teachers"] if t["state"] == "free"]
        if len(ready) == 2:
            break
        assert all(child.alive() for child in pool.machines.children)
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    assert status["deployed"] == last.fingerprint


@pytest.mark.nightly
@pytest.mark.processes
def test_the_journals_replay_without_processes(pools, served, deployment):
    pool = pools(deployment, teachers=2)
    source, samples, _ = served(pool, rate=1e9, epochs=5, record=True)
    train(source, 3)
    pool.machines.children[0].process.kill()
    for _ in source.epoch(3, ()):
        pass
    source.close()
    reader = replay(source.log.with_suffix(".jsonl"))
    reader.check()
    batches = len(samples.batches(0))
    assert sorted(set(reader.delivered))[: 4 * batches] == [
        (e, b) for e in range(4) for b in range(batches)
    ]
    assert len(reader.delivered) == len(set(reader.delivered))
    pool.close()
    table = replay(pool.folder / "coordinator.jsonl")
    table.check()
    assert table.events["on_ready"] == 2
    assert table.events["on_lost"] >= 1
    lines = (pool.folder / "coordinator.jsonl").read_text().splitlines()
    for line, entry in enumerate(map(json.loads, lines)):
        if entry.get("on") == "on_demand":
            entry["args"][1] = 1e-9  # a student that needs nothing gets other leases
            lines[line] = json.dumps(entry)
    changed = pool.folder / "changed.jsonl"
    changed.write_text("\n".join(lines))
    with pytest.raises(AssertionError, match="led to"):
        replay(changed).check()


@pytest.mark.nightly
@pytest.mark.processes
def test_two_students_get_fair_shares_and_the_first_loses_nothing(
    pools, served, deployment
):
    pool = pools(deployment, teachers=2)
    first, samples, events = served(pool, rate=1e9, epochs=300, student="first")
    ids = [(0, b.ids.copy()) for b in first.epoch(0, ())]
    assert len(ask(pool.address, "kdlab_status", tls=pool.tls)["teachers"]) == 2
    second, _, _ = served(pool, rate=1e9, epochs=3, student="second")
    ids += [(e, b.ids.copy()) for e in range(1, 300) for b in first.epoch(e, ())]
    complete(ids, samples, 300)
    complete(train(second, 3), samples, 3)
    assert "teacher_left" in [name for name, _ in events]  # moved, gracefully
    assert "teacher_lost" not in [name for name, _ in events]
    assert first.figures()["resends"] == 0


@pytest.mark.nightly
@pytest.mark.processes
def test_one_teacher_serves_two_students_at_once(pools, served, deployment):
    pool = pools(deployment, teachers=1)
    first, samples, events = served(pool, rate=1e9, epochs=100, student="first")
    ids = [(0, b.ids.copy()) for b in first.epoch(0, ())]
    second, _, others = served(pool, rate=1e9, epochs=100, student="second")
    batches = iter(second.epoch(0, ()))
    its_ids = [(0, next(batches).ids.copy())]
    (teacher,) = ask(pool.address, "kdlab_status", tls=pool.tls)["teachers"]
    assert sum(teacher["shares"].values()) == pytest.approx(1.0, abs=0.03)
    assert set(teacher["shares"]) == {"first", "second"}
    its_ids += [(0, b.ids.copy()) for b in batches]
    for epoch in range(1, 100):  # in turn: neither waits for the other to be done
        ids += [(epoch, b.ids.copy()) for b in first.epoch(epoch, ())]
        its_ids += [(epoch, b.ids.copy()) for b in second.epoch(epoch, ())]
    complete(ids, samples, 100)
    complete(its_ids, samples, 100)
    assert not {"teacher_left", "teacher_lost"} & {name for name, _ in [*events, *others]}
    assert first.figures()["resends"] == second.figures()["resends"] == 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_pool_grows_while_a_student_searches_and_shrinks_when_idle(
    served, deployment, tmp_path
):
    spec = LocalPool(teachers=0, least=0, most=2, idle_s=1.0)
    with contextlib.closing(spec.start(deployment, tmp_path / "pool")) as pool:
        pool.wait()
        source, samples, _ = served(pool, rate=1e9, epochs=3)
        complete(train(source, 3), samples, 3)
        deadline = time.monotonic() + 300
        while len(pool.machines.children) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        source.close()
        while any(child.alive() for child in pool.machines.children):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert [child.process.returncode for child in pool.machines.children] == [0, 0]


@pytest.mark.slow("a scheduler, a teacher and a reader, and each port knocked at")
@pytest.mark.parametrize(
    "tls", [None, pytest.param(Tls(temporary=True), marks=pytest.mark.nightly)]
)
def test_nobody_without_certificate_or_token_gets_in(served, deployment, tmp_path, tls):
    """Another user of this machine could run code in a run that configured no TLS."""
    from dask import config as dask_config

    spec = LocalPool(teachers=1, tls=tls)
    with contextlib.closing(spec.start(deployment, tmp_path / "pool")) as pool:
        pool.wait()
        assert pool.address.startswith("tls://")
        (teacher,) = ask(pool.address, "kdlab_status", tls=pool.tls)["teachers"]
        assert teacher["address"].startswith("tls://")
        with pytest.raises(SchedulerUnreachable):
            check_address(pool.address, wait_s=2.0)
        with pytest.raises(SchedulerUnreachable):  # plain TCP to the same port
            check_address(pool.address.replace("tls", "tcp"), wait_s=2.0)
        foreign_tls = Tls(temporary=True).files(tmp_path)  # signed by somebody else
        with pytest.raises(SchedulerUnreachable):
            check_address(pool.address, wait_s=2.0, tls=foreign_tls)
        knock_at_every_port([pool.scheduler.pid, *(c.pid for c in pool.machines.children)])
        source, samples, _ = served(pool, epochs=3)
        knock_at_every_port([source.reader.pid])
        complete(train(source, 3), samples, 3)
        source.close()
        folder = pool.tls["key"].rsplit("/", 1)[0]
        assert (tmp_path / folder).stat().st_mode & 0o077 == 0
    assert not (tmp_path / folder).exists()
    assert not dask_config.get(
        "distributed.comm.require-encryption"
    )  # this process: as it was


def knock_at_every_port(pids):
    """Plain bytes, a label wire's frame and an HTTP request hear nothing but the end."""
    ports = [
        c.laddr.port
        for pid in pids
        for c in psutil.Process(pid).net_connections()
        if c.status == psutil.CONN_LISTEN
    ]
    frame = struct.pack("<4sIQ", b"kdl1", 2, 0) + b"{}"
    for port in ports:
        for request in (frame, b"GET /info/main/workers.html HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as wire:
                wire.settimeout(60)
                with contextlib.suppress(OSError):  # it may be shut in our face
                    wire.sendall(request)
                    wire.shutdown(socket.SHUT_WR)
                    heard = wire.recv(1000)
                    assert b"HTTP" not in heard, (port, heard)
                    assert b"kdl1" not in heard, (port, heard)


@pytest.mark.nightly
@pytest.mark.slow
def test_redis_that_goes_away_and_comes_back_holds_the_leases_again(
    pools, served, deployment, tmp_path
):
    """Its keys expired meanwhile: a renewal alone would not bring them back."""
    from redis import Redis

    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
    port = free_port()

    def start():
        words = ["--port", str(port), "--save", "", "--dir", str(tmp_path)]
        server = subprocess.Popen([binary, *words], stdout=subprocess.DEVNULL)
        until(lambda: listens(port))
        return server

    server = start()
    try:
        pool = pools(deployment, teachers=2, store=f"redis://127.0.0.1:{port}/0")
        prefix = f"kdlab:{pool.folder.parent.name}"
        source, samples, _ = served(pool, rate=1e9, epochs=20)
        server.kill()
        server.wait()
        complete(train(source, 20), samples, 20)  # nobody misses it
        server = start()  # empty
        client = Redis(port=port, decode_responses=True)
        until(lambda: len(list(client.scan_iter(f"{prefix}:teacher:*"))) == 2)
    finally:
        server.kill()
        server.wait()


FACTS = {
    "name": "a",
    "pid": 1,
    "device": "cpu",
    "threads": 1,
    "best_batch": 1,
    "by_reference": True,
    "wire_port": 1,
}


def leased(address, epoch):
    shares = {"s": Share(epoch, 1.0)}
    return SharedTeacher(address, "assigned", 0.0, 6.0, shares=shares)


def test_leases_in_a_file_come_back_and_a_damaged_one_is_left_aside(tmp_path):
    path = tmp_path / "leases.json"

    async def write():
        store = make_store(str(path), "unused")
        await store.load()
        store.put(TEACHERS, "tcp://a", leased("tcp://a", 7))
        store.put(TEACHERS, "tcp://b", leased("tcp://b", 8))
        store.drop(TEACHERS, "tcp://b")
        store.put(STUDENTS, "s", StudentRow("s", 1.0, 0.0))
        store.put(POOL, THE_POOL, PoolRow(next_epoch=9))
        await store.close()

    async def read():
        store = make_store(str(path), "unused")
        rows = await store.load()
        await store.close()
        return rows

    asyncio.run(write())
    assert path.stat().st_mode & 0o077 == 0
    rows = asyncio.run(read())
    assert rows.teachers == {"tcp://a": leased("tcp://a", 7)}
    assert rows.students["s"].t_s == 1.0
    assert rows.pool == PoolRow(next_epoch=9)
    for damaged in ("", "[1, 2]", '{"teacher": 3}', path.read_text()[:-5]):
        path.write_text(damaged)
        assert asyncio.run(read()) == StoredRows()


def test_quarantine_is_for_the_lease_at_fault_and_fades(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(
        "kdlab.cluster.coordination.coordinator.time.monotonic", lambda: now[0]
    )
    plugin = Coordinator()

    async def ready():
        return await plugin.ready("a", "f", 20.0, 0.1, [], FACTS)

    async def complain():
        (held,) = (await plugin.watch("s", -1, "", 0.0))["held"]
        lease = held["epoch"]
        stale, bad = (
            ReportBadTeacher("a", lease - 1, "stale"),
            ReportBadTeacher("a", lease, "NaN"),
        )
        await plugin.tell("s", to_builtins(stale))
        assert plugin.leases.held_by("s")  # of an earlier lease: nothing happens
        await plugin.tell("s", to_builtins(bad))

    async def look():
        await plugin.start(SimpleNamespace(handlers={}))
        await plugin.demand("s", 10.0, None)
        await plugin.hello("a", serves={"fingerprint": "f"})
        waits = []
        for _ in range(3):
            assert await ready() == {}
            await complain()
            waits.append((await ready())["retry_s"])
            now[0] += waits[-1] + 1
        now[0] += 3 * 600
        assert await ready() == {}
        await complain()
        waits.append((await ready())["retry_s"])
        await plugin.close()
        return waits

    assert asyncio.run(look()) == [10.0, 20.0, 40.0, 10.0]


def test_versions_of_another_coordinator_are_not_trusted():
    """A reader's version counts changes of one table; another one begins at zero."""
    plugin = Coordinator()

    async def look():
        await plugin.start(SimpleNamespace(handlers={}))
        await plugin.demand("s", 10.0, None)
        await plugin.hello("a", serves={"fingerprint": "f"})
        accepted = await plugin.ready("a", "f", 20.0, 0.1, [], FACTS)
        first = await plugin.watch("s", -1, "", 0.0)
        same = await plugin.watch("s", first["version"], first["incarnation"], 0.0)
        foreign = await plugin.watch("s", 999, "another", 0.0)
        await plugin.close()
        return accepted, first, same, foreign

    accepted, first, same, foreign = asyncio.run(look())
    assert accepted == {}
    assert [t["teacher"] for t in first["held"]] == ["a"]
    assert not same["held"]
    assert [t["teacher"] for t in foreign["held"]] == ["a"]
