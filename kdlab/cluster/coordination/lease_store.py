"""Storage of the coordinator's lease table: in memory, in a file, or in Redis as in the paper.

The table itself is pure (kdlab/papers/edl_dist/leases.py) and lives in the scheduler. A store
holds a copy of its rows, so that a restarted coordinator knows which student holds which
teacher. In memory nothing outlives the process: then teachers register again and readers
announce themselves again, which takes one renewal (1.5 s).

A file is replaced as a whole, a few times a second at most. One that cannot be read is
ignored: teachers and readers send its contents again.

Redis holds one key per teacher with the TTL of its lease (section 3.1: the alive status
has a Time-To-Live, a heartbeat prolongs it), so a coordinator that restarts late finds silent
teachers gone. A separate task writes in order, one pipeline at a time: a slow Redis delays nobody.
"""

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from kdlab.cluster.transport.security import write_private
from kdlab.codec import Amount, Count, MessageError, from_builtins, from_json, to_builtins
from kdlab.config import credentials
from kdlab.config.home import find_as, write_whole
from kdlab.errors import BadInput, Fault
from kdlab.papers.edl_dist.fair_shares import Demand, SharedTeacher

TEACHERS, STUDENTS, POOL = "teacher", "student", "pool"  # kinds of rows
THE_POOL = "facts"  # name of the row of the pool
_LOG = logging.getLogger("kdlab")
_FILE_EVERY_S = 0.2
_KindRows = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class StudentRow:
    """Demand of a student: the fields of `Demand` that it sent itself."""

    student: str
    t_s: Amount
    since: float
    at_most: Count | None = None
    priority: Amount = 1.0
    floor: Count = 0

    @classmethod
    def from_demand(cls, d: Demand) -> "StudentRow":
        return cls(d.student, d.need, d.since, d.at_most, d.priority, d.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """The deployment, as `Deployment.to_json` encodes it, and the next lease epoch."""

    deployment: Mapping[str, object] | None = None
    next_epoch: Count


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Contents of a store: teachers by address, students by name, and a row of the pool."""

    teachers: Mapping[str, SharedTeacher] = field(default_factory=dict)
    students: Mapping[str, StudentRow] = field(default_factory=dict)
    pool: PoolRow | None = None


def _read(rows: Mapping[str, object]) -> StoredRows:
    """Decode the rows of a file or of Redis.

    Raises:
        MessageError, KeyError: they are not rows of a store.
    """
    teachers = from_builtins(dict[str, SharedTeacher], rows[TEACHERS])
    if not all(0 <= number < inf for t in teachers.values() for number in (t.ttl_s, t.t_t)):
        raise MessageError("A teacher's rate or time to live is no number")
    return StoredRows(
        teachers,
        from_builtins(dict[str, StudentRow], rows[STUDENTS]),
        from_builtins(dict[str, PoolRow], rows[POOL]).get(THE_POOL),
    )


async def _end(writer: asyncio.Task[None]) -> None:
    while not writer.done():  # a client may lose a cancellation in a command
        writer.cancel()
        await asyncio.wait([writer], timeout=0.5)


class LeaseStore:
    """A store in memory, which keeps nothing beside the table; subclasses keep a copy."""

    async def load(self) -> StoredRows:
        return StoredRows()

    def put(self, kind: str, name: str, row: object, ttl_s: float | None = None) -> None:
        """Store a row for `ttl_s` seconds; None: for ever."""

    def renew(self, kind: str, name: str, ttl_s: float) -> None: ...

    def drop(self, kind: str, name: str) -> None: ...

    async def close(self) -> None: ...


class InFile(LeaseStore):
    """A store in one JSON file on the scheduler's machine, which only this user can read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: _KindRows = {TEACHERS: {}, STUDENTS: {}, POOL: {}}
        self._changed = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    async def load(self) -> StoredRows:
        try:
            rows = await asyncio.to_thread(find_as, _KindRows, self.path)
            if rows is None:  # the first start
                return StoredRows()
            stored = _read(rows)
            self._rows = {kind: rows[kind] for kind in self._rows}
            return stored
        except (KeyError, MessageError) as error:
            _LOG.warning(
                "Leases in %s cannot be read and are ignored: %s", self.path, error
            )
        return StoredRows()

    def put(self, kind: str, name: str, row: object, ttl_s: float | None = None) -> None:
        self._rows[kind][name] = to_builtins(row)
        self._changed.set()

    def drop(self, kind: str, name: str) -> None:
        self._rows[kind].pop(name, None)
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
            _LOG.warning("Leases cannot be written to %s: %s", self.path, error)

    async def close(self) -> None:
        await _end(self._writer)
        if self._changed.is_set():
            await self._flush()


class InRedis(LeaseStore):
    """A store in Redis; each key begins with `prefix`, so that pools can share a server."""

    def __init__(self, url: str, prefix: str = "kdlab") -> None:
        try:
            from redis.asyncio import Redis  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise BadInput(
                "A store in Redis needs the package redis: pip install 'kdlab[redis]'"
            ) from error
        self.redis = Redis.from_url(url, decode_responses=True, socket_timeout=5.0)
        self.prefix = prefix
        # The newest command for each key: bounded by the rows, however long Redis is away.
        self._writes: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._rows: dict[str, str] = {}  # last values; an expired key is set again
        self._wake = asyncio.Event()
        self._writer = asyncio.create_task(self._write())

    def _key(self, kind: str, name: str) -> str:
        return f"{self.prefix}:{kind}:{name}"

    async def load(self) -> StoredRows:
        """Read the rows that have not expired.

        Raises:
            redis.RedisError: it cannot be reached; the coordinator must not start then.
        """
        rows_by_kind: dict[str, dict[str, object]] = {TEACHERS: {}, STUDENTS: {}, POOL: {}}
        for kind, rows in rows_by_kind.items():
            start = len(self._key(kind, ""))
            async for key in self.redis.scan_iter(self._key(kind, "*")):
                text = await self.redis.get(key)
                if text is not None:  # it may expire between the two calls
                    self._rows[key] = str(text)
                    rows[key[start:]] = from_json(object, str(text).encode())
        return _read(rows_by_kind)

    def put(self, kind: str, name: str, row: object, ttl_s: float | None = None) -> None:
        key = self._key(kind, name)
        self._rows[key] = json.dumps(to_builtins(row))
        self._set(key, ttl_s)

    def renew(self, kind: str, name: str, ttl_s: float) -> None:
        # Not PEXPIRE: a key that expired while Redis was away would stay gone.
        key = self._key(kind, name)
        if key in self._rows:
            self._set(key, ttl_s)

    def _set(self, key: str, ttl_s: float | None) -> None:
        # One command sets value and expiry: no crash leaves an immortal key.
        expiry = () if ttl_s is None else ("PX", str(int(1000 * ttl_s)))
        self._queue("SET", key, self._rows[key], *expiry)

    def drop(self, kind: str, name: str) -> None:
        key = self._key(kind, name)
        self._rows.pop(key, None)
        self._queue("DEL", key)

    def _queue(self, *command: str) -> None:
        self._writes.pop(command[1], None)  # the newest comes last
        self._writes[command[1]] = command
        self._wake.set()

    async def _write(self) -> None:
        """Write every change in order, and retry while Redis is away."""
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
            if self._writes.get(key) is command:  # else a newer command replaced it
                del self._writes[key]
        return True

    async def close(self) -> None:
        await _end(self._writer)
        await self._flush()  # includes what was being written: commands may be repeated
        await self.redis.aclose()


_REDIS = ("redis://", "rediss://", "unix://")


def make_store(where: str | None, prefix: str) -> LeaseStore:
    """Make a store: in memory (None), in Redis (redis://..., rediss://...) or in a file (a path).

    Raises:
        BadInput: the address names a password that is not on this machine.
    """
    if where is None:
        return LeaseStore()
    if where.startswith(_REDIS):
        return InRedis(credentials.revealed(where), prefix)
    return InFile(Path(where))


def store_faults(where: str | None, *, local: bool) -> Iterator[Fault]:
    """Faults of a pool's `store`; with `local` its password must be on this machine."""
    if where is None or where.startswith("/"):
        return
    if not where.startswith(_REDIS):
        yield Fault(
            "store",
            f"is {where!r}: give redis://host:port/number or the absolute path of a file",
        )
    yield from credentials.faults("store", where, lookup=local)
