"""The Coordinator of EDL-Dist (section 3.1) as a plugin of the Dask scheduler.

Carries out the pure table of kdlab/papers/edl_dist/leases.py: calls become events with
the scheduler's own clock, changes wake the readers they concern. Teachers and readers
talk to each other directly; nothing of their data passes here.

Messages hold plain values only. The scheduler process needs no torch.
"""

import asyncio
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.ioloop import PeriodicCallback

from kdlab.cluster.lease_store import LeaseStore, make_store
from kdlab.cluster.probe import disagreement
from kdlab.cluster.recording import Recorded
from kdlab.papers.edl_dist.leases import Demand, Lease, LeaseTable

STUDENT_SILENT_S = 15.0  # a reader watches at least every 2 s
_TICK_MS = 250
_BATCHES_PER_TTL = 4  # two are queued at a teacher, and one may be slow
_OTHER_RATE = 0.1  # a teacher's t_t that differs by more than this is news
_QUARANTINE_S = 10.0  # of a teacher with unusable answers; doubles with each time


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
        self.weights_files: list[bytes] = []
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
            *("deploy", "hello", "weights", "ready", "renew", "leave"),
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
            self.store.put_pool(
                {"deployment": self.deployment, "next_epoch": table.next_epoch}
            )
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

    def _wake(self, student: str) -> None:
        if student in self.wakes:
            self.wakes.pop(student).set()

    # Teachers

    async def deploy(
        self, deployment: dict[str, Any], weights: list[bytes] | None = None
    ) -> str:
        """Publish what teachers are to serve; empty, or why not.

        Another deployment than before makes every teacher register and load again. While
        a student still holds teachers it is refused.
        """
        before = (self.deployment or {}).get("fingerprint")
        if before not in (None, deployment["fingerprint"]):
            if self.leases.demands:
                return (
                    f"the pool still serves {', '.join(self.leases.demands)} with another "
                    "model or other data; wait for it, or use another pool"
                )
            for teacher in list(self.leases.leases):
                self._lost(teacher)
            self.quarantine.clear()
        self.weights_files = weights or []
        self.deployment = deployment
        self.deployed.set()
        return ""

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

    async def weights(self, number: int = 0) -> bytes:
        """Weights the run sent along, for a teacher that cannot read their path."""
        if number >= len(self.weights_files):
            raise FileNotFoundError("the run sent no weights along: its pool is local")
        return self.weights_files[number]

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
        if abs(t_t - lease.t_t) > _OTHER_RATE * lease.t_t:
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

    async def demand(self, student: str, t_s: float, at_most: int | None) -> None:
        now = time.monotonic()
        self.students_seen[student] = now
        self.leases.on_demand(student, t_s, now, at_most)
        row = {"student": student, "t_s": t_s, "at_most": at_most, "since": now}
        self.store.put_student(student, row)
        self._changed()

    async def extra(self, student: str) -> bool:
        got = self.leases.on_extra(student, time.monotonic())
        self._changed()
        return bool(got)

    async def release(self, student: str, teacher: str) -> None:
        self.leases.on_release(student, teacher, time.monotonic())
        self._changed()

    async def give_back(self, student: str, teacher: str, lease: int) -> None:
        """A request failed on the way: the teacher is free, and may come under a new lease."""
        self.leases.on_given_back(student, teacher, lease, time.monotonic())
        self._changed()

    async def complain(self, student: str, teacher: str, why: str) -> None:
        """A reader found a teacher's answers unusable: it is left out for a while."""
        _, times, _ = self.quarantine.get(teacher, (0.0, 0, ""))
        until = time.monotonic() + _QUARANTINE_S * 2.0**times
        self.quarantine[teacher] = (until, times + 1, why)
        self._lost(teacher)

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


async def dask_setup(scheduler: Any) -> None:
    """`dask scheduler --preload kdlab.cluster.coordinator` makes it a coordinator."""
    plugin = Coordinator()
    scheduler.add_plugin(plugin)
    await plugin.start(scheduler)
