"""Where the coordinator's table is kept: in memory, in a file, or in Redis as in the paper.

The table itself is pure (kdlab/papers/edl_dist/leases.py) and lives in the scheduler.
A store holds a copy of its rows, so that a coordinator that starts again knows whose
teacher is whose. In memory nothing outlives the process: then teachers register again
and readers announce themselves again, which takes one renewal (1.5 s).

A file is written whole, beside and then in place, a few times a second at most. One that
cannot be read is left aside: teachers and readers say again what stood in it.

Redis holds one key per teacher with the TTL of its lease (section 3.1: the alive status
has a Time-To-Live, a heartbeat prolongs it), so a coordinator that comes back late
finds the silent ones gone. Writes go out in the order of the changes, one pipeline at a
time, behind the handlers: a slow Redis slows nobody.
"""

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

from kdlab.cluster.wires.security import write_private
from kdlab.config.home import write_whole
from kdlab.errors import BadInput

_TEACHERS, _STUDENTS, _POOL = "teacher", "student", "pool"
_LOG = logging.getLogger("kdlab")
_FILE_EVERY_S = 0.2


class LeaseStore(Protocol):
    async def load(self) -> dict[str, dict[str, Any]]:
        """{"teacher": rows by address, "student": rows by name, "pool": facts}."""

    def put_teacher(self, address: str, row: dict[str, Any], ttl_s: float) -> None: ...

    def renew_teacher(self, address: str, ttl_s: float) -> None: ...

    def drop_teacher(self, address: str) -> None: ...

    def put_student(self, name: str, row: dict[str, Any]) -> None: ...

    def drop_student(self, name: str) -> None: ...

    def put_pool(self, facts: dict[str, Any]) -> None:
        """What is served, and the newest lease epoch."""

    async def close(self) -> None: ...


class InMemory:
    """Keeps nothing beyond the table."""

    async def load(self) -> dict[str, dict[str, Any]]:
        return {_TEACHERS: {}, _STUDENTS: {}, _POOL: {}}

    def put_teacher(self, address: str, row: dict[str, Any], ttl_s: float) -> None: ...

    def renew_teacher(self, address: str, ttl_s: float) -> None: ...

    def drop_teacher(self, address: str) -> None: ...

    def put_student(self, name: str, row: dict[str, Any]) -> None: ...

    def drop_student(self, name: str) -> None: ...

    def put_pool(self, facts: dict[str, Any]) -> None: ...

    async def close(self) -> None: ...


class InFile:
    """One JSON file on the scheduler's machine, for this user alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, dict[str, Any]] = {_TEACHERS: {}, _STUDENTS: {}, _POOL: {}}
        self._changed = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    async def load(self) -> dict[str, dict[str, Any]]:
        try:
            text = await asyncio.to_thread(self.path.read_text)
            rows = json.loads(text)
            self._rows = {kind: dict(rows[kind]) for kind in self._rows}
        except FileNotFoundError:
            pass  # the first start
        except (OSError, ValueError, KeyError, TypeError) as error:
            _LOG.warning("leases in %s cannot be read, begun anew: %s", self.path, error)
        kept: dict[str, dict[str, Any]] = json.loads(json.dumps(self._rows))
        return kept

    def put_teacher(self, address: str, row: dict[str, Any], ttl_s: float) -> None:
        self._put(_TEACHERS, address, row)

    def renew_teacher(self, address: str, ttl_s: float) -> None: ...

    def drop_teacher(self, address: str) -> None:
        self._put(_TEACHERS, address, None)

    def put_student(self, name: str, row: dict[str, Any]) -> None:
        self._put(_STUDENTS, name, row)

    def drop_student(self, name: str) -> None:
        self._put(_STUDENTS, name, None)

    def put_pool(self, facts: dict[str, Any]) -> None:
        self._rows[_POOL] = facts
        self._changed.set()

    def _put(self, kind: str, name: str, row: dict[str, Any] | None) -> None:
        if row is None:
            self._rows[kind].pop(name, None)
        else:
            self._rows[kind][name] = row
        self._changed.set()

    async def _write(self) -> None:
        while True:
            await self._changed.wait()
            await self._flush()
            await asyncio.sleep(_FILE_EVERY_S)

    async def _flush(self) -> None:
        self._changed.clear()
        text = json.dumps(self._rows)
        try:
            await asyncio.to_thread(
                write_whole, self.path, lambda new: write_private(new, text)
            )
        except OSError as error:
            _LOG.warning("leases cannot be written to %s: %s", self.path, error)

    async def close(self) -> None:
        self._writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writer
        if self._changed.is_set():
            await self._flush()


class InRedis:
    """One Redis; every key begins with `prefix`, so several pools may share it."""

    def __init__(self, url: str, prefix: str = "kdlab") -> None:
        try:
            from redis.asyncio import Redis  # noqa: PLC0415  # an extra of its own
        except ImportError as error:
            raise BadInput(
                "a store in Redis needs the package redis: pip install 'kdlab[redis]'"
            ) from error
        self.redis = Redis.from_url(url, decode_responses=True, socket_timeout=5.0)
        self.prefix = prefix
        # The newest command for each key: as many as there are rows, however long it is away.
        self._writes: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._rows: dict[str, str] = {}  # as written last; an expired key is set again
        self._wake = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    def _key(self, kind: str, name: str) -> str:
        return f"{self.prefix}:{kind}:{name}"

    async def load(self) -> dict[str, dict[str, Any]]:
        """What is there and has not expired.

        Raises:
            redis.RedisError: it cannot be reached; the coordinator must not start then.
        """
        found: dict[str, dict[str, Any]] = {_TEACHERS: {}, _STUDENTS: {}, _POOL: {}}
        for kind, rows in found.items():
            start = len(self._key(kind, ""))
            async for key in self.redis.scan_iter(self._key(kind, "*")):
                text: Any = await self.redis.get(key)
                if text is not None:  # it may expire between the two calls
                    self._rows[key] = text
                    rows[key[start:]] = json.loads(text)
        found[_POOL] = found[_POOL].get("facts", {})
        return found

    def put_teacher(self, address: str, row: dict[str, Any], ttl_s: float) -> None:
        # One command sets value and expiry: no crash leaves an immortal key.
        key, text = self._key(_TEACHERS, address), json.dumps(row)
        self._rows[key] = text
        self._queue("SET", key, text, "PX", str(int(1000 * ttl_s)))

    def renew_teacher(self, address: str, ttl_s: float) -> None:
        # Not PEXPIRE: a key that expired while Redis was away would stay gone.
        key = self._key(_TEACHERS, address)
        if key in self._rows:
            self._queue("SET", key, self._rows[key], "PX", str(int(1000 * ttl_s)))

    def drop_teacher(self, address: str) -> None:
        self._rows.pop(self._key(_TEACHERS, address), None)
        self._queue("DEL", self._key(_TEACHERS, address))

    def put_student(self, name: str, row: dict[str, Any]) -> None:
        self._queue("SET", self._key(_STUDENTS, name), json.dumps(row))

    def drop_student(self, name: str) -> None:
        self._queue("DEL", self._key(_STUDENTS, name))

    def put_pool(self, facts: dict[str, Any]) -> None:
        self._queue("SET", self._key(_POOL, "facts"), json.dumps(facts))

    def _queue(self, *command: str) -> None:
        self._writes.pop(command[1], None)  # the newest comes last
        self._writes[command[1]] = command
        self._wake.set()

    async def _write(self) -> None:
        """Every change, in order; a Redis that is away is tried again."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self._flush():
                await asyncio.sleep(0.5)  # between tries
                self._wake.set()

    async def _flush(self) -> bool:
        from redis import RedisError  # noqa: PLC0415

        batch = dict(self._writes)
        if not batch:
            return True
        try:
            async with self.redis.pipeline(transaction=False) as pipe:
                for command in batch.values():
                    pipe.execute_command(*command)
                await pipe.execute()
        except (RedisError, OSError) as error:
            _LOG.warning("Redis does not take %d changes: %s", len(batch), error)
            return False
        for key, command in batch.items():
            if self._writes.get(key) is command:  # else it changed meanwhile
                del self._writes[key]
        return True

    async def close(self) -> None:
        self._writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writer
        await self._flush()  # again what was under way: each command may be repeated
        await self.redis.aclose()


def make_store(where: str | None, prefix: str) -> LeaseStore:
    """In memory without a place; redis://..., rediss://... or the path of a file."""
    if where is None:
        return InMemory()
    if where.startswith(("redis://", "rediss://", "unix://")):
        return InRedis(where, prefix)
    return InFile(Path(where))
