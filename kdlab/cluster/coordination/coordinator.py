"""The Coordinator of EDL-Dist (section 3.1) as a plugin of the Dask scheduler.

Carries out the pure table of kdlab/papers/edl_dist/leases.py: calls become events with
the scheduler's own clock, changes wake the readers they concern. Teachers and readers
talk to each other directly; nothing of their data passes here.

Messages hold plain values only. The scheduler process needs no torch.
"""

import asyncio
import math
import random
import shutil
import tempfile
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from kdlab.cluster.coordination.lease_store import LeaseStore, make_store
from kdlab.cluster.coordination.recording import Recorded
from kdlab.cluster.teachers.probe import disagreement
from kdlab.papers.edl_dist.leases import Demand, Lease, LeaseTable

STUDENT_SILENT_S = 15.0  # a reader watches at least every 2 s
_TICK_MS = 250
_BATCHES_PER_TTL = 4  # two are queued at a teacher, and one may be slow
_OTHER_RATE = 0.1  # a teacher's t_t that differs by more than this is news
_QUARANTINE_S = 10.0  # of a teacher with unusable answers; doubles with each time
_LONGEST_QUARANTINE_S = 600.0
_FORGIVEN_S = 600.0  # without a complaint: one of the earlier ones is forgotten
_CHUNK = 1 << 20  # bytes of weights in one answer, so that no renewal waits for more
_STREAMS = 2  # teachers that get weights from here at once; the others wait, or ask those
_STREAM_S = 10.0  # without a question: that teacher is taken for gone


class Coordinator(SchedulerPlugin):
    name = "kdlab-coordinator"
    idempotent = True  # two processes may install it at once; the first stays

    def __init__(
        self,
        ttl_s: float = 6.0,
        deployment: dict[str, Any] | None = None,
        store_url: str | None = None,
        store_prefix: str = "kdlab",
        journal: str | None = None,
    ) -> None:
        # Milliseconds since 1970: lease epochs never repeat those of a coordinator before.
        first = int(1000 * time.time())
        self.leases: Any = LeaseTable(ttl_s, next_epoch=first)
        self.deployment = deployment
        self.store_url, self.store_prefix = store_url, store_prefix
        self.journal = journal
        self.weights_folder: Path | None = None  # of what runs sent along, by sha256
        self.streams: dict[
            str, float
        ] = {}  # teachers that get weights from here: when last
        self.facts: dict[str, dict[str, Any]] = {}  # per teacher: pid, name, device
        self.expired = 0
        self.quarantine: dict[str, tuple[float, int, str]] = {}  # until, times, why
        self.students_seen: dict[str, float] = {}
        self.woken: dict[
            str, int
        ] = {}  # version of its own that each student was woken for
        self.wakes: dict[str, asyncio.Event] = {}
        self.renewals = 0

    async def start(self, scheduler: Any) -> None:
        self.incarnation = uuid.uuid4().hex
        self.deployed = asyncio.Event()
        self.store: LeaseStore = make_store(self.store_url, self.store_prefix)
        self.weights_folder = Path(tempfile.mkdtemp(prefix="kdlab-weights-"))
        if self.journal is not None:
            self.leases = Recorded(
                self.leases,
                Path(self.journal),
                leave_out=("on_renewed",),  # hundreds a second, and they decide nothing
                state=lambda table: [table.version, table.next_epoch],
                ttl_s=self.leases.ttl_s,
                next_epoch=self.leases.next_epoch,
            )
        self._restore(await self.store.load())
        operations = (
            *("deploy", "hello", "ready", "renew", "leave"),
            *("weights_source", "weights", "weights_put"),
            *("demand", "extra", "release", "give_back", "complain", "watch"),
            *("student_gone", "status"),
        )
        scheduler.handlers.update(
            {f"kdlab_{name}": getattr(self, name) for name in operations}
        )
        self.ticker = PeriodicCallback(self.tick, _TICK_MS)
        self.ticker.start()
        before = getattr(scheduler, "kdlab_coordinator", None)
        if before is not None:  # this plugin replaces one that was removed
            await before.close()
        scheduler.kdlab_coordinator = self

    async def close(self) -> None:
        self.ticker.stop()
        await self.store.close()
        if self.weights_folder is not None:
            await asyncio.to_thread(shutil.rmtree, self.weights_folder, ignore_errors=True)

    # The table and its copy

    def _restore(self, kept: dict[str, dict[str, Any]]) -> None:
        pool = kept["pool"]
        self.deployment = self.deployment or pool.get("deployment")
        rows = kept["teacher"]
        if not (rows or kept["student"]):
            return
        self.facts = {address: row.pop("facts") for address, row in rows.items()}
        self.leases.on_restored(
            [Lease(**row) for row in rows.values()],
            [Demand(**row) for row in kept["student"].values()],
            pool["next_epoch"],
            time.monotonic(),
        )
        now = time.monotonic()
        self.students_seen = dict.fromkeys(kept["student"], now)
        self._changed()

    def _changed(self) -> None:
        """Copy what changed to the store, and wake the readers it concerns."""
        table = self.leases
        if table.touched:
            self._put_pool()
        for address in table.touched:
            lease = table.leases.get(address)
            if lease is None:
                self.store.drop_teacher(address)
                continue
            row = asdict(lease) | {"facts": self.facts.get(address, {})}
            self.store.put_teacher(address, row, lease.ttl_s)
        table.touched.clear()
        for student in table.demands:
            newest = table.version_of(student)
            if newest > self.woken.get(student, 0):
                self.woken[student] = newest
                self._wake(student)

    def _put_pool(self) -> None:
        facts = {"deployment": self.deployment, "next_epoch": self.leases.next_epoch}
        self.store.put_pool(facts)

    def _wake(self, student: str) -> None:
        if student in self.wakes:
            self.wakes.pop(student).set()

    # Teachers

    async def deploy(self, deployment: dict[str, Any]) -> str:
        """Publish what teachers are to serve; empty, or why not.

        Another deployment than before makes every teacher register and load again. While
        a student still holds teachers it is refused. The same models and data as before
        are one deployment, whatever batch, loss or way to send inputs a student has.
        """
        before = self.deployment or {}
        if before.get("fingerprint") == deployment["fingerprint"]:
            if deployment["by_reference"] and not before["by_reference"]:
                return (
                    "its teachers were started for a student that sends pixels and have "
                    "loaded no data; use soft_labels.inputs=value_uint8, or another pool"
                )
            return ""
        if before:
            if self.leases.demands:
                return (
                    f"the pool still serves {', '.join(self.leases.demands)} with another "
                    "model or other data; wait for it, or use another pool"
                )
            for teacher in list(self.leases.leases):
                self._lost(teacher)
            self.quarantine.clear()
        self.deployment = deployment
        self._put_pool()
        self.deployed.set()
        return ""

    # Weights, for teachers that cannot read their path

    async def weights_put(self, sha256: str, offset: int, chunk: bytes) -> int:
        """Take the next piece of a file that a run sends; how much there is of it now."""
        path = self._weights_path(sha256)
        have = path.stat().st_size if path.is_file() else 0
        if offset == have:
            await asyncio.to_thread(_append, path, chunk)
            have += len(chunk)
        return have

    async def weights_source(self, address: str, sha256: str) -> dict[str, Any]:
        """Where a teacher gets weights: {"peer": wire}, {"size": bytes} here, or {"wait_s"}.

        Few are served from here at once, so that leases come first; whoever has them serves
        others.
        """
        peers = [
            (teacher, facts["wire_port"])
            for teacher, facts in self.facts.items()
            if sha256 in facts.get("weights", ()) and teacher != address
        ]
        if peers:
            return {"peer": random.choice(peers)}
        path = self._weights_path(sha256)
        if not path.is_file():
            raise FileNotFoundError(
                "neither this pool nor a teacher of it has these weights; the run that "
                "deployed them sends them along while it is up"
            )
        now = time.monotonic()
        self.streams = {a: at for a, at in self.streams.items() if now - at < _STREAM_S}
        if address not in self.streams and len(self.streams) >= _STREAMS:
            return {"wait_s": 0.5}
        self.streams[address] = now
        return {"size": path.stat().st_size}

    async def weights(self, address: str, sha256: str, offset: int) -> bytes:
        """One piece of a file."""
        self.streams[address] = time.monotonic()
        path = self._weights_path(sha256)
        piece = await asyncio.to_thread(_piece, path, offset)
        if offset + len(piece) >= path.stat().st_size:
            del self.streams[address]
        return piece

    def _weights_path(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise ValueError(f"{sha256[:80]!r} is no sha256")
        assert self.weights_folder is not None
        return self.weights_folder / sha256

    async def hello(
        self, address: str, serves: dict[str, Any] | None = None, wait_s: float = 5.0
    ) -> dict[str, Any] | None:
        """A teacher registers before it loads its model; told what to load, or None yet.

        A coordinator that knows nothing (it was started again) takes what a teacher that
        is loaded already `serves`.
        """
        if address not in self.leases.leases:
            self.leases.on_registered(address, time.monotonic())
        else:
            self.leases.on_renewed(address, time.monotonic())
        if self.deployment is None and serves is not None:
            self.deployment = serves
            self.deployed.set()
        if self.deployment is None:
            try:
                await asyncio.wait_for(self.deployed.wait(), wait_s)
            except TimeoutError:
                return None  # the teacher asks again
        return {"deployment": self.deployment, "renew_s": self.leases.ttl_s / 4}

    async def ready(
        self,
        address: str,
        fingerprint: str,
        t_t: float,
        batch_s: float,
        answer: list[list[float]],
        facts: dict[str, Any],
    ) -> dict[str, Any]:
        """{} when the teacher is accepted; else why not, and when to try again if ever."""
        now = time.monotonic()
        until, _, why = self.quarantine.get(address, (0.0, 0, ""))
        if now < until:
            why = f"a student could not use its answers: {why}"
            return {"refused": why, "retry_s": until - now}
        wanted = (self.deployment or {}).get("fingerprint", "")
        if fingerprint != wanted:  # the pool serves something else since it said hello
            self._lost(address)
            why = (
                f"it serves model {fingerprint}, this pool serves {wanted or 'nothing yet'}"
            )
            return {"refused": why, "retry_s": None, "load": True}
        refused = disagreement(answer, (self.deployment or {}).get("reference") or [])
        if refused:
            self._lost(address)
            return {"refused": refused, "retry_s": None}
        if not (math.isfinite(t_t) and t_t > 0 and math.isfinite(batch_s)):
            return {"refused": f"it measured {t_t} samples/s", "retry_s": None}
        self.facts[address] = facts
        # Leases are renewed between batches: one that takes long must not look like a hang.
        ttl_s = max(self.leases.ttl_s, _BATCHES_PER_TTL * batch_s)
        self.leases.on_ready(address, t_t, now, ttl_s)
        self._changed()
        return {}

    async def renew(self, address: str, t_t: float, answered: int, queued: int = 0) -> bool:
        self.renewals += 1
        table = self.leases
        known = table.on_renewed(address, time.monotonic())
        if not known:
            return False
        self.facts.setdefault(address, {}).update(answered=answered, queued=queued)
        lease = table.leases[address]
        self.store.renew_teacher(address, lease.ttl_s)
        if _number(t_t) and abs(t_t - lease.t_t) > _OTHER_RATE * lease.t_t:
            table.on_rate(address, t_t, time.monotonic())
            self._changed()
        return True

    async def leave(self, address: str) -> None:
        self.leases.on_leaving(address, time.monotonic())
        self._changed()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """Dask saw the connection break: the fast path, 0.01 s after a SIGKILL."""
        self._lost(worker)

    def _lost(self, address: str, *, expired: bool = False) -> None:
        self.facts.pop(address, None)
        if self.leases.on_lost(address, time.monotonic(), expired=expired):
            self._changed()

    def tick(self) -> None:
        now = time.monotonic()
        for teacher in self.leases.expired(now):
            self.expired += 1
            self._lost(teacher, expired=True)
        if self.leases.someone_starves():
            self.leases.on_turn(now)
            self._changed()
        for student, seen in list(self.students_seen.items()):
            if now - seen > STUDENT_SILENT_S:
                self._drop_student(student)

    # Students

    async def demand(
        self,
        student: str,
        t_s: float,
        at_most: int | None,
        priority: float = 1.0,
        floor: int = 1,
    ) -> None:
        now = time.monotonic()
        self.students_seen[student] = now
        how = {"at_most": at_most, "priority": priority, "floor": floor}
        self.leases.on_demand(student, _number(t_s), now, **how)
        self.store.put_student(
            student, {"student": student, "t_s": t_s, "since": now} | how
        )
        self._changed()

    async def extra(self, student: str, need: float = 0.0) -> bool:
        got = self.leases.on_extra(student, time.monotonic(), _number(need))
        self._changed()
        return bool(got)

    async def release(self, student: str, teacher: str, lease: int, need: float) -> None:
        now = time.monotonic()
        self.leases.on_release(student, teacher, lease, _number(need), now)
        self._changed()

    async def give_back(self, student: str, teacher: str, lease: int) -> None:
        """A request failed on the way: the teacher is free, and may come under a new lease."""
        self.leases.on_given_back(student, teacher, lease, time.monotonic())
        self._changed()

    async def complain(self, student: str, teacher: str, lease: int, why: str) -> None:
        """A reader found a teacher's answers unusable: it is left out for a while.

        Only whoever holds the lease may say so. What was long ago counts no more.
        """
        now = time.monotonic()
        if not self.leases.on_complaint(student, teacher, lease, now):
            return
        self.facts.pop(teacher, None)
        until, times, _ = self.quarantine.get(teacher, (now, 0, ""))
        times = max(0, times - int((now - until) / _FORGIVEN_S))
        left_out_s = min(_LONGEST_QUARANTINE_S, _QUARANTINE_S * 2.0 ** min(times, 10))
        self.quarantine[teacher] = (now + left_out_s, times + 1, why[:300])
        self._changed()

    async def student_gone(self, student: str) -> None:
        self._drop_student(student)

    def _drop_student(self, student: str) -> None:
        self.students_seen.pop(student, None)
        self.woken.pop(student, None)
        self.leases.on_student_gone(student, time.monotonic())
        self.store.drop_student(student)
        self._wake(student)
        self._changed()

    async def watch(
        self, student: str, version: int, incarnation: str, wait_s: float
    ) -> dict[str, Any]:
        """What changed for a student after `version`, as soon as something did."""
        table = self.leases
        if incarnation != self.incarnation:
            version = -1  # its version is one of a coordinator before
        deadline = time.monotonic() + wait_s
        self.students_seen[student] = time.monotonic()
        while (
            student in table.demands
            and version >= table.version_of(student)
            and (left := deadline - time.monotonic()) > 0
        ):
            wake = self.wakes.setdefault(student, asyncio.Event())
            try:
                await asyncio.wait_for(wake.wait(), left)
            except TimeoutError:
                break  # nothing changed
        self.students_seen[student] = time.monotonic()
        if student not in table.demands:
            return {"known": False}
        delta = table.delta(student, version)
        given = [
            {
                "address": le.teacher,
                "lease": le.epoch,
                "t_t": le.t_t,
                "draining": le.state == "draining",
            }
            | self.facts.get(le.teacher, {})
            for le in delta.held
        ]
        return {
            "known": True,
            "version": delta.version,
            "incarnation": self.incarnation,
            "full": delta.full,
            "given": given,
            "gone": delta.gone,
        }

    async def status(self) -> dict[str, Any]:
        """Everything there is to see: for waiting pools, `kdlab doctor` and tests."""
        now = time.monotonic()
        return {
            "deployed": (self.deployment or {}).get("fingerprint", ""),
            "expired": self.expired,
            "renewals": self.renewals,
            "students": {
                d.student: {"t_s": d.t_s, "rate": d.rate, "searching": d.searching}
                for d in self.leases.demands.values()
            },
            "teachers": [
                {
                    "address": le.teacher,
                    "state": le.state,
                    "student": le.student,
                    "t_t": le.t_t,
                    "silent_s": now - le.renewed_at,
                    **self.facts.get(le.teacher, {}),
                }
                for le in self.leases.leases.values()
            ],
        }


def _number(value: float) -> float:
    """A finite number, at least 0: what a student says is not believed blindly."""
    return float(value) if math.isfinite(value) and value > 0 else 0.0


def _append(path: Path, chunk: bytes) -> None:
    with path.open("ab") as file:
        file.write(chunk)


def _piece(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(_CHUNK)


async def dask_setup(scheduler: Any) -> None:
    """`dask scheduler --preload kdlab.cluster.coordinator` makes it a coordinator."""
    plugin = Coordinator()
    scheduler.add_plugin(plugin)
    await plugin.start(scheduler)
