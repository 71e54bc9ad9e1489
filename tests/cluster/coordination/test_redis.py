"""Leases in a real Redis: with the TTL of each, there after a restart, and set again."""

import asyncio
import contextlib
import json
import shutil
import subprocess

import pytest
from pool_in_process import Scheduler
from pool_status import facts
from tests_support import free_port, listens, until

from kdlab.cluster.coordination.coordinator import Coordinator
from kdlab.cluster.coordination.coordinator_messages import Deployed
from kdlab.codec import to_builtins, to_dict

pytestmark = pytest.mark.processes
SERVED = to_builtins(Deployed(fingerprint="f"))


class Redis:
    """A Redis server that can be killed and started again, then empty."""

    def __init__(self, folder):
        self.binary = shutil.which("redis-server")
        if self.binary is None:
            pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
        from redis import Redis

        self.port, self.folder = free_port(), folder
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = Redis(port=self.port, decode_responses=True)
        self.start()

    def start(self):
        words = ["--port", str(self.port), "--save", "", "--dir", str(self.folder)]
        self.server = subprocess.Popen([self.binary, *words], stdout=subprocess.DEVNULL)
        until(lambda: listens(self.port))

    def kill(self):
        self.server.kill()
        self.server.wait()

    def teachers(self):
        keys = sorted(self.client.scan_iter("pool:teacher:*"))
        return {key: json.loads(self.client.get(key)) for key in keys}


@pytest.fixture
def redis(tmp_path):
    server = Redis(tmp_path)
    yield server
    server.kill()


@contextlib.asynccontextmanager
async def coordinating(redis, **options):
    plugin = Coordinator(store_url=redis.url, store_prefix="pool", **options)
    await plugin.start(Scheduler())
    try:
        yield plugin
    finally:
        await plugin.close()


async def join(plugin, *addresses):
    for address in addresses:
        await plugin.hello(address)
        about = to_dict(facts(name=address))
        assert await plugin.ready(address, "f", 100.0, 0.1, [], about) == {}


async def seen(condition):
    """Wait until the condition holds, while the event loop goes on."""
    return await asyncio.to_thread(until, condition)


def test_leases_have_their_ttl_and_a_new_coordinator_has_them_at_once(redis):
    async def before():
        async with coordinating(redis, deployment=SERVED, ttl_s=60.0) as plugin:
            await join(plugin, "tcp://a", "tcp://b")
            await plugin.demand("s", 1e9, None)
            await seen(lambda: len(redis.teachers()) == 2)
        return {key: row["shares"] for key, row in redis.teachers().items()}

    async def after():
        async with coordinating(redis, ttl_s=60.0) as plugin:
            return plugin.pool_status()

    epochs = asyncio.run(before())
    left = [redis.client.pttl(key) for key in epochs]
    assert all(0 < ms <= 60_000 for ms in left)
    status = asyncio.run(after())  # before anybody announced anything
    assert [t.state for t in status.teachers] == ["assigned"] * 2
    assert (status.deployed, list(status.students)) == ("f", ["s"])
    assert {key: row["shares"] for key, row in redis.teachers().items()} == epochs


def test_who_falls_silent_is_gone_there_too(redis):
    async def live():
        async with coordinating(redis, deployment=SERVED, ttl_s=0.2) as plugin:
            plugin.ticker.stop()  # nobody looks: its TTL alone
            await join(plugin, "tcp://a")
            plugin.leases.leases["tcp://a"].ttl_s = 0.2  # its batches are quick
            await plugin.renew("tcp://a", 100.0, {"answered": 0})
            await seen(lambda: not redis.teachers())

    asyncio.run(live())


def test_after_it_was_away_all_leases_are_held_again(redis, caplog):
    """Its keys expired meanwhile: prolonging them would not bring them back."""

    async def live():
        async with coordinating(redis, deployment=SERVED) as plugin:
            await join(plugin, "tcp://a", "tcp://b")
            await seen(lambda: len(redis.teachers()) == 2)
            redis.kill()
            for address in ("tcp://a", "tcp://b"):  # nobody misses it
                assert await plugin.renew(address, 100.0, {"answered": 0}) is True
            await seen(lambda: "Redis does not take" in caplog.text)
            redis.start()  # empty
            await seen(lambda: len(redis.teachers()) == 2)

    asyncio.run(live())
